_base_ = './adamw_100.py'
param_scheduler = [dict(type='PolyLR', eta_min=0, power=0.9, begin=0, end=250, by_epoch=False)]
train_cfg = dict(max_iters=250, val_interval=250)
default_hooks = dict(logger=dict(interval=25), checkpoint=dict(interval=50), visualization=dict(interval=50))
