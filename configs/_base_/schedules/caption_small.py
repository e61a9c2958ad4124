# For the small captioners on Flickr8k: the first schedule that was tried, with nn.Transformer.
_base_ = './san_15e.py'
optim_wrapper = dict(optimizer=dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8))
param_scheduler = [
    dict(type='LinearLR', start_factor=1 / 3, begin=0, end=2, by_epoch=True),
    dict(type='MultiStepLR', milestones=[5, 8], gamma=0.5, by_epoch=True),
]
train_cfg = dict(max_epochs=10)
