# Cityscapes as the empirical study of spatial attention trains on it: scale 0.7–2.0.
_base_ = './cityscapes.py'
train_pipeline = [
    dict(type='mmattn.SeedAugmentation'),
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=(2048, 1024), ratio_range=(0.7, 2.0), keep_ratio=True),
    dict(type='RandomCrop', crop_size=(769, 769), cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(batch_size=1, dataset=dict(pipeline=train_pipeline))
