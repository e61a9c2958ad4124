# SAN: 4 + 4 layers of 512 channels, 8 heads.
model = dict(
    type='mmattn.SANCaptioner',
    vocab_size=9490,
    num_features=2048,
    num_layers=4,
    embed_dim=512,
    num_heads=8,
    feedforward_dim=2048,
    encoder_attention=dict(type='mmattn.RegionAttention'),
    test_cfg=dict(beam=3),
)
