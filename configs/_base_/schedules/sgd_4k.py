_base_ = './sgd_80k.py'
param_scheduler = [dict(type='PolyLR', eta_min=0, power=0.9, begin=0, end=4000, by_epoch=False)]
train_cfg = dict(max_iters=4000, val_interval=500)
default_hooks = dict(checkpoint=dict(interval=500, max_keep_ckpts=2))
