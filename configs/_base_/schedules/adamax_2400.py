# For short runs on CPUs: a part of the questions has the same number of updates as all.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='Adamax', lr=2e-3),
    clip_grad=dict(max_norm=0.25),
)
param_scheduler = [dict(type='CosineAnnealingLR', begin=0, end=2400, by_epoch=False)]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=2400, val_interval=400)
