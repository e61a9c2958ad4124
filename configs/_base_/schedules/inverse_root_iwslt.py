# fairseq's recipe for IWSLT'14: AdamW, 5e-4 after 4,000 updates, 50,000 updates of 4,000 tokens.
optim_wrapper = dict(
    type='mmattn.TokenOptimWrapper', optimizer=dict(type='AdamW', lr=5e-4, betas=(0.9, 0.98), weight_decay=1e-4)
)
param_scheduler = [dict(type='mmattn.InverseRootLR', warmup=4000, by_epoch=False)]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=50000, val_interval=2000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=100, log_metric_by_epoch=False),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(
        type='mmattn.CheckpointHook', by_epoch=False, interval=2000, save_best='BLEU', rule='greater', max_keep_ckpts=10
    ),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    checkpoint_keys=dict(type='mmattn.CheckpointKeysHook'),
    invalid_loss=dict(type='mmattn.InvalidLossHook'),
    preemption=dict(type='mmattn.PreemptionHook'),
)
