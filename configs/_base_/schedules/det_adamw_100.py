# For detection samples of a few images.
_base_ = './det_adamw_150.py'
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, begin=0, end=20, by_epoch=False),
    dict(type='CosineAnnealingLR', eta_min=0, begin=20, end=100, by_epoch=False),
]
train_cfg = dict(max_iters=100, val_interval=100)
auto_scale_lr = dict(base_batch_size=4)
