_base_ = [
    '../_base_/models/transformer_tiny.py',
    '../_base_/datasets/multi30k_en-de.py',
    '../_base_/default_runtime_text.py',
    '../_base_/schedules/inverse_root_tiny.py',
]
# 5,032 symbols and 4 special ones; another corpus needs `--cfg-options model.vocab_size=N`.
model = dict(vocab_size=5036)
