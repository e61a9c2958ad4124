# Checks, checkpoints and logs of training by epochs; the best checkpoint has the highest CIDEr-D in the validation.
_base_ = './default_runtime_video.py'
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=100),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(
        type='mmattn.CheckpointHook', by_epoch=True, interval=1, save_best='CIDEr-D', rule='greater', max_keep_ckpts=2
    ),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    checkpoint_keys=dict(type='mmattn.CheckpointKeysHook'),
    invalid_loss=dict(type='mmattn.InvalidLossHook'),
    preemption=dict(type='mmattn.PreemptionHook'),
)
log_processor = dict(by_epoch=True)
