# For the size tiny.
_base_ = './inverse_root_iwslt.py'
optim_wrapper = dict(optimizer=dict(lr=5e-3))
param_scheduler = [dict(type='mmattn.InverseRootLR', warmup=500, by_epoch=False)]
train_cfg = dict(max_iters=1500, val_interval=300)
default_hooks = dict(logger=dict(interval=50), checkpoint=dict(interval=100, max_keep_ckpts=5))
randomness = dict(seed=0)
