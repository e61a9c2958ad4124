# fairseq's size for IWSLT'14: 6 + 6 layers of 512 channels, 4 heads. No dropout on attention weights.
model = dict(
    type='mmattn.TranslationTransformer',
    size='iwslt',
    dropout=0.3,
    label_smoothing=0.1,
    test_cfg=dict(beam=5, length_penalty=1.0, penalty_kind='power', max_length=(0, 200)),
)
