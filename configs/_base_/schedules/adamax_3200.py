# For short runs on CPUs: a part of the questions has the same number of updates as all. The rate is constant, and falls
# to 0 in the last quarter.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='Adamax', lr=2e-3),
    clip_grad=dict(max_norm=0.25),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1.0, end_factor=0.0, begin=2400, end=3200, by_epoch=False),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=3200, val_interval=400)
