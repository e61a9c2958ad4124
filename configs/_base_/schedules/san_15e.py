# NG-SAN, cross-entropy: 1e-4, 2e-4, then 3e-4, halved from epochs 7, 10 and 13. Adam as in Transformer-Base.
optim_wrapper = dict(
    type='mmattn.TokenOptimWrapper',
    optimizer=dict(type='Adam', lr=3e-4, betas=(0.9, 0.98), eps=1e-9),
    clip_grad=dict(type='value', clip_value=0.1),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1 / 3, begin=0, end=3, by_epoch=True),
    dict(type='MultiStepLR', milestones=[6, 9, 12], gamma=0.5, by_epoch=True),
]
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=15, val_interval=1)
