# Our own: the thesis names no schedule. Adam 1e-4, weight decay 1e-5, halved four times.
optim_wrapper = dict(
    type='OptimWrapper', optimizer=dict(type='Adam', lr=1e-4, weight_decay=1e-5), clip_grad=dict(max_norm=1.0)
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, begin=0, end=1000, by_epoch=False),
    dict(type='MultiStepLR', milestones=[40000, 60000, 80000, 90000], gamma=0.5, by_epoch=False),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=100000, val_interval=10000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50, log_metric_by_epoch=False),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(
        type='mmattn.CheckpointHook', by_epoch=False, interval=5000, save_best='JF', rule='greater', max_keep_ckpts=3
    ),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    visualization=dict(type='mmattn.VOSVisualizationHook'),
    checkpoint_keys=dict(type='mmattn.CheckpointKeysHook'),
    invalid_loss=dict(type='mmattn.InvalidLossHook'),
    preemption=dict(type='mmattn.PreemptionHook'),
)
auto_scale_lr = dict(enable=False, base_batch_size=4)
