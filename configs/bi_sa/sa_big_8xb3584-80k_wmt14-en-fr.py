_base_ = [
    '../_base_/models/transformer_big.py',
    '../_base_/datasets/wmt14_en-fr.py',
    '../_base_/default_runtime_text.py',
    '../_base_/schedules/cosine_big_80k.py',
]
# As published for 40,000 merges. The converter prints yours; another corpus needs `--cfg-options model.vocab_size=N`.
model = dict(vocab_size=44512, dropout=0.1, test_cfg=dict(length_penalty=0.9))
train_dataloader = dict(batch_sampler=dict(max_tokens=3584))
