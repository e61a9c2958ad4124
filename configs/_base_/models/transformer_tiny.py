# Multi30k's size: small Transformers are best there. 4 + 4 layers of 128 channels, 4 heads.
model = dict(
    type='mmattn.TranslationTransformer',
    size='tiny',
    dropout=0.1,
    label_smoothing=0.1,
    test_cfg=dict(beam=5, length_penalty=1.0, penalty_kind='power', max_length=(1.5, 10)),
)
