# ETA-Transformer: two encoders and a decoder of 6 layers of 512 channels, 8 heads.
model = dict(
    type='mmattn.ETACaptioner',
    vocab_size=9490,
    num_features=2048,
    num_layers=6,
    embed_dim=512,
    num_heads=8,
    feedforward_dim=2048,
    label_smoothing=0.1,
    test_cfg=dict(beam=5),
)
