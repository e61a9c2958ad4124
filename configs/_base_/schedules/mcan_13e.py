# MCAN: 2.5e-5 to 1e-4 in the first four epochs, a fifth in epochs 11 and 12, a 25th in epoch 13; batches of 64.
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='Adam', lr=1e-4, betas=(0.9, 0.98), eps=1e-9))
param_scheduler = [
    dict(type='LinearLR', start_factor=1 / 4, begin=0, end=4, by_epoch=True),
    dict(type='MultiStepLR', milestones=[10, 12], gamma=1 / 5, by_epoch=True),
]
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=13, val_interval=1)
