# Small, for 128 features per region: 2 + 2 layers of 128 channels.
_base_ = './mcan.py'
model = dict(
    vocab_size=2381,
    num_answers=346,
    num_features=128,
    num_layers=2,
    embed_dim=128,
    num_heads=4,
    feedforward_dim=512,
    fused_dim=256,
)
