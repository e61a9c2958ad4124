# CamVid, 11 classes at 480×360, in mmseg's layout: img_dir/{train,val}/*.jpg and ann_dir/{train,val}/*.png, 255
# ignored. `CAMVID_ROOT` moves the data.
dataset_type = 'BaseSegDataset'
data_root = '{{$CAMVID_ROOT:data/camvid}}'
metainfo = dict(
    classes=(
        'Sky',
        'Building',
        'Pole',
        'Road',
        'Pavement',
        'Tree',
        'SignSymbol',
        'Fence',
        'Car',
        'Pedestrian',
        'Bicyclist',
    ),
    palette=[
        [128, 128, 128],
        [128, 0, 0],
        [192, 192, 128],
        [128, 64, 128],
        [60, 40, 222],
        [128, 128, 0],
        [192, 128, 128],
        [64, 64, 128],
        [64, 0, 128],
        [64, 64, 0],
        [0, 128, 192],
    ],
)
scale = (480, 360)
crop_size = (360, 360)
train_pipeline = [
    dict(type='mmattn.SeedAugmentation'),
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=scale, ratio_range=(0.75, 2.0), keep_ratio=True),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs'),
]
# Annotations are loaded after `Resize`: they are compared at their own size.
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=scale, keep_ratio=True),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
tta_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='TestTimeAug',
        transforms=[
            [dict(type='Resize', scale_factor=r, keep_ratio=True) for r in (0.75, 1.0, 1.25, 1.5)],
            [dict(type='RandomFlip', prob=p, direction='horizontal') for p in (0.0, 1.0)],
            [dict(type='LoadAnnotations')],
            [dict(type='PackSegInputs')],
        ],
    ),
]
train_dataloader = dict(
    batch_size=8,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type='mmattn.InfiniteSampler', shuffle=True),
    dataset=dict(
        type=dataset_type,
        metainfo=metainfo,
        data_root=data_root,
        data_prefix=dict(img_path='img_dir/train', seg_map_path='ann_dir/train'),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type=dataset_type,
        metainfo=metainfo,
        data_root=data_root,
        data_prefix=dict(img_path='img_dir/val', seg_map_path='ann_dir/val'),
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator
