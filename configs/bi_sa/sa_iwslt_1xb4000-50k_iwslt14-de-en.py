_base_ = [
    '../_base_/models/transformer_iwslt.py',
    '../_base_/datasets/iwslt14_de-en.py',
    '../_base_/default_runtime_text.py',
    '../_base_/schedules/inverse_root_iwslt.py',
]
# As published for 10,000 merges. The converter prints yours; another corpus needs `--cfg-options model.vocab_size=N`.
model = dict(vocab_size=10152)
