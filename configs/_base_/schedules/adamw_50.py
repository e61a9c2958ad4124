# For samples of a few images on a CPU: a minute.
_base_ = './sgd_80k.py'
optimizer = dict(_delete_=True, type='AdamW', lr=0.001, weight_decay=0.01)
optim_wrapper = dict(optimizer=optimizer)
param_scheduler = [dict(type='PolyLR', eta_min=0, power=0.9, begin=0, end=50, by_epoch=False)]
train_cfg = dict(max_iters=50, val_interval=50)
default_hooks = dict(
    logger=dict(interval=10), checkpoint=dict(interval=25, max_keep_ckpts=1), visualization=dict(interval=1)
)
randomness = dict(seed=0)
