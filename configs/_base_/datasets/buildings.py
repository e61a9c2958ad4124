# The sample of `tools/dataset_converters/sample_data.py buildings`: 8 + 4 aerial tiles, about 571×571.
_base_ = './camvid.py'
data_root = '{{$BUILDINGS_ROOT:data/buildings}}'
metainfo = dict(classes=('background', 'building'), palette=[[40, 60, 80], [255, 140, 0]])
crop_size = (256, 256)
train_pipeline = [
    dict(type='mmattn.SeedAugmentation'),
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.9),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs'),
]
test_pipeline = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations'), dict(type='PackSegInputs')]
train_dataloader = dict(
    batch_size=8,
    num_workers=2,
    dataset=dict(metainfo=metainfo, data_root=data_root, img_suffix='.png', pipeline=train_pipeline),
)
val_dataloader = dict(
    num_workers=0,
    persistent_workers=False,
    dataset=dict(metainfo=metainfo, data_root=data_root, img_suffix='.png', pipeline=test_pipeline),
)
test_dataloader = val_dataloader
