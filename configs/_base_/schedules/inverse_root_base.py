# For the size base: Adam, 7e-4 after 4,000 updates, 100,000 updates of 25,000 tokens.
_base_ = './inverse_root_iwslt.py'
optim_wrapper = dict(optimizer=dict(_delete_=True, type='Adam', lr=7e-4, betas=(0.9, 0.98)))
train_cfg = dict(max_iters=100000, val_interval=5000)
default_hooks = dict(checkpoint=dict(interval=5000))
