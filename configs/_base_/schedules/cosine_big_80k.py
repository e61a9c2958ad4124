# As cosine_big_30k.py, with 80,000 updates.
_base_ = './cosine_big_30k.py'
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-4, begin=0, end=160000, by_epoch=False),
    dict(type='CosineAnnealingLR', eta_min=1e-7, begin=160000, end=1280000, by_epoch=False),
]
train_cfg = dict(max_iters=1280000)
