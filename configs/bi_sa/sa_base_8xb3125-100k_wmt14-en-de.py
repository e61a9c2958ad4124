_base_ = [
    '../_base_/models/transformer_base.py',
    '../_base_/datasets/wmt14_en-de.py',
    '../_base_/default_runtime_text.py',
    '../_base_/schedules/inverse_root_base.py',
]
# As published for 32,000 merges. The converter prints yours; another corpus needs `--cfg-options model.vocab_size=N`.
model = dict(vocab_size=32768)
train_dataloader = dict(batch_sampler=dict(max_tokens=3125))
