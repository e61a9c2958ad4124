# For the small networks on COCO-QA: twice the epochs. Chosen for the concatenation, before any other head was trained.
_base_ = './ban_13e_bs256.py'
param_scheduler = [
    dict(type='LinearLR', start_factor=1 / 4, begin=0, end=4, by_epoch=True),
    dict(type='MultiStepLR', milestones=[20, 24], gamma=1 / 4, by_epoch=True),
]
train_cfg = dict(max_epochs=26)
