# BAN: 1e-3 to 4e-3 in the first four epochs, a quarter in epochs 11 and 12, a sixteenth in epoch 13; batches of 512.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='Adamax', lr=4e-3),
    clip_grad=dict(max_norm=0.25),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1 / 4, begin=0, end=4, by_epoch=True),
    dict(type='MultiStepLR', milestones=[10, 12], gamma=1 / 4, by_epoch=True),
]
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=13, val_interval=1)
