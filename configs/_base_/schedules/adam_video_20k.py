# The second stage: larger frames, a tenth of the learning rate.
_base_ = './adam_video_100k.py'
optim_wrapper = dict(optimizer=dict(lr=1e-5))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, begin=0, end=200, by_epoch=False),
    dict(type='MultiStepLR', milestones=[10000, 15000], gamma=0.5, by_epoch=False),
]
train_cfg = dict(max_iters=20000, val_interval=5000)
