# The terms of all self-attention are those of encoder_attention and decoder_attention.
_base_ = [
    '../_base_/models/transformer_base.py',
    '../_base_/datasets/wmt14_en-de.py',
    '../_base_/default_runtime_text.py',
    '../_base_/schedules/inverse_root_terms.py',
]
terms = dict(type='mmattn.TransformerAttention1d', terms='1111')
model = dict(
    # As published for 32,000 merges. The converter prints yours;
    # another corpus needs `--cfg-options model.vocab_size=N`.
    vocab_size=32768,
    positions='none',
    encoder_attention=terms,
    decoder_attention=terms,
    cross_attention=terms,
    test_cfg=dict(beam=4, length_penalty=0.6, penalty_kind='gnmt', max_length=(1.0, 50)),
)
train_dataloader = dict(batch_sampler=dict(max_tokens=3750))
