# Small, for Flickr8k with 128 features per region: 2 + 2 layers of 128 channels, 4 heads. The decoder drops no
# attention weights.
_base_ = './san.py'
model = dict(
    vocab_size=2269,
    num_features=128,
    num_layers=2,
    embed_dim=128,
    num_heads=4,
    feedforward_dim=256,
    attention_dropout=0.0,
)
