# The sample of `tools/dataset_converters/sample_data.py trees`: 38 + 9 aerial tiles, about 400×400.
_base_ = './bccd.py'
data_root = '{{$TREES_ROOT:data/trees}}'
metainfo = dict(classes=('Tree',), palette=[(255, 140, 0)])
scale = (400, 400)
train_pipeline = [
    dict(type='mmattn.SeedAugmentation'),
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='FilterAnnotations', min_gt_bbox_wh=(1, 1), keep_empty=False),  # as of BCCD: a box may have no area
    dict(type='Resize', scale=scale, keep_ratio=True),
    dict(type='RandomFlip', prob=0.5, direction=['horizontal', 'vertical']),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=scale, keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='FilterAnnotations', min_gt_bbox_wh=(1, 1), keep_empty=False),  # as of BCCD: a box may have no area
    dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
]
train_dataloader = dict(batch_size=4, dataset=dict(metainfo=metainfo, data_root=data_root, pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(metainfo=metainfo, data_root=data_root, pipeline=test_pipeline))
test_dataloader = val_dataloader
