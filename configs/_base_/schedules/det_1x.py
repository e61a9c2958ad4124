# 12 epochs, lr 0.02 for 8 GPUs × 2 images, a tenth of it from the 9th and from the 12th epoch; that of the offsets of
# deformable convolutions is a tenth throughout.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='SGD', lr=0.02, momentum=0.9, weight_decay=0.0001),
    paramwise_cfg=dict(custom_keys=dict(conv_offset=dict(lr_mult=0.1))),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type='MultiStepLR', begin=0, end=12, by_epoch=True, milestones=[8, 11], gamma=0.1),
]
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=12, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='mmattn.CheckpointHook', interval=1, save_best='coco/bbox_mAP', rule='greater'),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    visualization=dict(type='DetVisualizationHook'),
    num_classes=dict(type='NumClassCheckHook'),
    checkpoint_keys=dict(type='mmattn.CheckpointKeysHook'),
    invalid_loss=dict(type='mmattn.InvalidLossHook'),
    preemption=dict(type='mmattn.PreemptionHook'),
)
auto_scale_lr = dict(enable=False, base_batch_size=16)
