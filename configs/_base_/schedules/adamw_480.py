# For short runs from scratch on CPUs whose classes are small.
_base_ = './adamw_160.py'
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, begin=0, end=40, by_epoch=False),
    dict(type='PolyLR', eta_min=0, power=0.9, begin=40, end=480, by_epoch=False),
]
train_cfg = dict(max_iters=480, val_interval=240)
default_hooks = dict(checkpoint=dict(save_best='overall', rule='greater'), visualization=dict(interval=10))
