# 6 + 6 layers of 512 channels, 8 heads. No dropout on attention weights.
model = dict(
    type='mmattn.TranslationTransformer',
    size='base',
    dropout=0.1,
    label_smoothing=0.1,
    test_cfg=dict(beam=5, length_penalty=0.5, penalty_kind='power', max_length=(0, 200)),
)
