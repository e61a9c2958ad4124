# Small, for Flickr8k with 128 features per region: two encoders and a decoder of 2 layers of 128 channels, 4 heads.
_base_ = './eta.py'
model = dict(vocab_size=2269, num_features=128, num_layers=2, embed_dim=128, num_heads=4, feedforward_dim=256)
