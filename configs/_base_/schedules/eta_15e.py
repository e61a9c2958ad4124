# ETA, cross-entropy: warm-up over 20,000 updates to 512^-0.5 · 20,000^-0.5, then inverse root.
optim_wrapper = dict(
    type='mmattn.TokenOptimWrapper',
    optimizer=dict(type='Adam', lr=3.125e-4, betas=(0.9, 0.98), eps=1e-9),
    clip_grad=dict(type='value', clip_value=0.1),
)
param_scheduler = [dict(type='mmattn.InverseRootLR', warmup=20000, warmup_start=0.0, by_epoch=False)]
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=15, val_interval=1)
