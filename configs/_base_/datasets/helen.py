# HELEN, 11 classes, as `tools/dataset_converters/helen.py` writes it: img_dir/{train,val,test}/*.jpg and
# ann_dir/{train,val,test}/*.png. `HELEN_ROOT` moves the data. The thesis says neither scale nor crop nor augmentation:
# these are ours. Images vary in size: their longer side becomes 512, in tests, too.
_base_ = './segmentation.py'
dataset_type = 'mmattn.HELENDataset'
data_root = '{{$HELEN_ROOT:data/helen}}'
scale = (512, 512)
crop_size = (448, 448)
train_pipeline = _base_.train_pipeline
train_pipeline[3].update(scale=scale, ratio_range=(0.75, 1.25))
train_pipeline[4] = dict(type='RandomCrop', crop_size=crop_size)
# In a mirrored face left and right brow, and left and right eye, change names.
train_pipeline[5].swap_seg_labels = [(2, 3), (4, 5)]
test_pipeline = _base_.test_pipeline
test_pipeline[1].scale = scale
# No flips: mmseg mirrors the scores back, but does not exchange those of left and right.
tta_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='TestTimeAug',
        transforms=[
            [dict(type='Resize', scale=(s, s), keep_ratio=True) for s in (384, 512, 640)],
            [dict(type='LoadAnnotations')],
            [dict(type='PackSegInputs')],
        ],
    ),
]
train_dataloader = dict(
    batch_size=12,
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        data_prefix=dict(img_path='img_dir/train', seg_map_path='ann_dir/train'),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        data_prefix=dict(img_path='img_dir/val', seg_map_path='ann_dir/val'),
        pipeline=test_pipeline,
    ),
)
test_dataloader = dict(
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        data_prefix=dict(img_path='img_dir/test', seg_map_path='ann_dir/test'),
        pipeline=test_pipeline,
    ),
)
# The columns of the thesis's Table 4.3; overall is that of the inner components, without skin and hair.
val_evaluator = dict(
    _delete_=True,
    type='mmattn.FaceParsingMetric',
    groups=dict(
        brows=('left_brow', 'right_brow'),
        eyes=('left_eye', 'right_eye'),
        mouth=('upper_lip', 'inner_mouth', 'lower_lip'),
    ),
    columns=('skin', 'nose', 'upper_lip', 'inner_mouth', 'lower_lip', 'brows', 'eyes', 'mouth', 'overall'),
    overall=('brows', 'eyes', 'nose', 'mouth'),
)
test_evaluator = val_evaluator
