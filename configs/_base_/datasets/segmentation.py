# What the data sets for segmentation share: loaders, IoU, and the pipelines for Cityscapes. Scale and crop are the
# thesis's; flip, colours and `cat_max_ratio` are MMSegmentation's. Other data sets change single steps, by their place:
# train_pipeline[3] is the scale, [4] the crop, [5] the flip, [6] the colours.
train_pipeline = [
    dict(type='mmattn.SeedAugmentation'),
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=(2048, 1024), ratio_range=(0.75, 2.0), keep_ratio=True),
    dict(type='RandomCrop', crop_size=(769, 769), cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs'),
]
# Annotations are loaded after `Resize`: they are compared at their own size.
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(2048, 1024), keep_ratio=True),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
tta_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='TestTimeAug',
        transforms=[
            [dict(type='Resize', scale_factor=r, keep_ratio=True) for r in (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)],
            [dict(type='RandomFlip', prob=p, direction='horizontal') for p in (0.0, 1.0)],
            [dict(type='LoadAnnotations')],
            [dict(type='PackSegInputs')],
        ],
    ),
]
train_dataloader = dict(
    num_workers=4, persistent_workers=True, sampler=dict(type='mmattn.InfiniteSampler', shuffle=True)
)
val_dataloader = dict(
    batch_size=1, num_workers=4, persistent_workers=True, sampler=dict(type='DefaultSampler', shuffle=False)
)
test_dataloader = val_dataloader
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator
