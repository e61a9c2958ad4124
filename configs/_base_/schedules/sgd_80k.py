# Section 3.5: lr 1e-2, momentum 0.9, weight decay 1e-4, poly 0.9 to zero. The thesis names neither the optimizer nor
# the batch size: SGD and 8 (4 GPUs × 2).
optimizer = dict(type='SGD', lr=0.01, momentum=0.9, weight_decay=0.0001)
optim_wrapper = dict(type='OptimWrapper', optimizer=optimizer, clip_grad=None)
param_scheduler = [dict(type='PolyLR', eta_min=0, power=0.9, begin=0, end=80000, by_epoch=False)]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=80000, val_interval=8000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50, log_metric_by_epoch=False),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='mmattn.CheckpointHook', by_epoch=False, interval=8000, save_best='mIoU'),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    visualization=dict(type='SegVisualizationHook'),
    checkpoint_keys=dict(type='mmattn.CheckpointKeysHook'),
    invalid_loss=dict(type='mmattn.InvalidLossHook'),
    preemption=dict(type='mmattn.PreemptionHook'),
)
auto_scale_lr = dict(enable=False, base_batch_size=8)
