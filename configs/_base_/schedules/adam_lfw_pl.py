# As for HELEN, 100 epochs of 1,500 images.
_base_ = './adam_helen.py'
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, begin=0, end=375, by_epoch=False),
    dict(type='PolyLR', eta_min=0, power=0.9, begin=375, end=12500, by_epoch=False),
]
train_cfg = dict(max_iters=12500, val_interval=1250)
default_hooks = dict(checkpoint=dict(interval=1250, save_best='accuracy'))
