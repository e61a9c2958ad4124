# For short runs from scratch on CPUs.
_base_ = './adamw_50.py'
optimizer = dict(lr=0.003)
optim_wrapper = dict(optimizer=optimizer)
param_scheduler = [dict(type='PolyLR', eta_min=0, power=0.9, begin=0, end=160, by_epoch=False)]
train_cfg = dict(max_iters=160, val_interval=160)
default_hooks = dict(logger=dict(interval=20), checkpoint=dict(interval=40), visualization=dict(interval=50))
