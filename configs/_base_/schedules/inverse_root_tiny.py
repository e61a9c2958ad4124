# For the size tiny. Chosen for nn.Transformer on Multi30k, before any other attention was trained.
_base_ = './inverse_root_iwslt.py'
optim_wrapper = dict(optimizer=dict(lr=2e-3))
param_scheduler = [dict(type='mmattn.InverseRootLR', warmup=300, by_epoch=False)]
train_cfg = dict(max_iters=1500, val_interval=500)
default_hooks = dict(logger=dict(interval=50), checkpoint=dict(interval=250, max_keep_ckpts=3))
randomness = dict(seed=0)
