# BAN: 1e-3, 2e-3, 3e-3, then 4e-3; 1e-3 in epochs 11 and 12, 2.5e-4 in epoch 13.
optim_wrapper = dict(
    type='OptimWrapper', optimizer=dict(type='Adamax', lr=4e-3), clip_grad=dict(max_norm=0.25, norm_type=2)
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1 / 4, begin=0, end=4, by_epoch=True),
    dict(type='MultiStepLR', milestones=[10, 12], gamma=1 / 4, by_epoch=True),
]
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=13, val_interval=1)
