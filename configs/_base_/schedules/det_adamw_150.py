# For short detection runs from scratch on CPUs.
_base_ = './det_1x.py'
optim_wrapper = dict(
    optimizer=dict(_delete_=True, type='AdamW', lr=0.001, weight_decay=0.01), clip_grad=dict(max_norm=10.0)
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, begin=0, end=20, by_epoch=False),
    dict(type='CosineAnnealingLR', eta_min=0, begin=20, end=150, by_epoch=False),
]
train_cfg = dict(_delete_=True, type='IterBasedTrainLoop', max_iters=150, val_interval=150)
default_hooks = dict(
    logger=dict(interval=10, log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False, interval=50, max_keep_ckpts=1, save_best='pascal_voc/AP50', rule='greater'),
    visualization=dict(interval=1),
)
auto_scale_lr = dict(base_batch_size=8)
randomness = dict(seed=0)
