_base_ = './sgd_80k.py'
param_scheduler = [dict(type='PolyLR', eta_min=0, power=0.9, begin=0, end=160000, by_epoch=False)]
train_cfg = dict(max_iters=160000, val_interval=16000)
default_hooks = dict(checkpoint=dict(interval=16000))
