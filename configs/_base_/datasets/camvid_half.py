# CamVid at half resolution, for short runs on CPUs; scored at full resolution.
_base_ = './camvid.py'
scale = (240, 180)
crop_size = (180, 180)
train_pipeline = [
    dict(type='mmattn.SeedAugmentation'),
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=scale, ratio_range=(1.0, 1.5), keep_ratio=True),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=scale, keep_ratio=True),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(num_workers=2, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(num_workers=2, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
