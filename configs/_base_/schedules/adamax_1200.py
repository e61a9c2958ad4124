# For short runs on CPUs: as many updates for a part of the questions as for all.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='Adamax', lr=4e-3),
    clip_grad=dict(max_norm=0.25),
)
param_scheduler = [dict(type='CosineAnnealingLR', begin=0, end=1200, by_epoch=False)]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=1200, val_interval=300)
