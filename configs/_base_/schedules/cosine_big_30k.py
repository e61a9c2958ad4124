# fairseq's recipe for the size big: Adam, 1e-3 after 10,000 updates, cosine to 1e-7 after 30,000. An update accumulates
# the gradients of 16 iterations; all numbers below are iterations.
_base_ = './inverse_root_base.py'
optim_wrapper = dict(accumulative_counts=16, optimizer=dict(lr=1e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-4, begin=0, end=160000, by_epoch=False),
    dict(type='CosineAnnealingLR', eta_min=1e-7, begin=160000, end=480000, by_epoch=False),
]
train_cfg = dict(max_iters=480000, val_interval=16000)
default_hooks = dict(checkpoint=dict(interval=16000))
