# For short runs from scratch on CPUs.
_base_ = './adam_video_100k.py'
optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, begin=0, end=50, by_epoch=False),
    dict(type='CosineAnnealingLR', eta_min=0, begin=50, end=400, by_epoch=False),
]
train_cfg = dict(max_iters=400, val_interval=400)
default_hooks = dict(logger=dict(interval=20), checkpoint=dict(interval=200, max_keep_ckpts=1))
randomness = dict(seed=0)
