# Learning rate 5e-3; that of the offsets of deformable convolutions is a tenth of it.
_base_ = './sgd_80k.py'
optim_wrapper = dict(optimizer=dict(lr=0.005), paramwise_cfg=dict(custom_keys=dict(conv_offset=dict(lr_mult=0.1))))
param_scheduler = [dict(type='PolyLR', eta_min=0, power=0.9, begin=0, end=60000, by_epoch=False)]
train_cfg = dict(max_iters=60000, val_interval=6000)
default_hooks = dict(checkpoint=dict(interval=6000))
