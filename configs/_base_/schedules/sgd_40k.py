_base_ = './sgd_80k.py'
param_scheduler = [dict(type='PolyLR', eta_min=0, power=0.9, begin=0, end=40000, by_epoch=False)]
train_cfg = dict(max_iters=40000, val_interval=4000)
default_hooks = dict(checkpoint=dict(interval=4000))
