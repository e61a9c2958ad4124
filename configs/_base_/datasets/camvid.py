# CamVid, 11 classes at 480×360, in mmseg's layout: img_dir/{train,val}/*.jpg and ann_dir/{train,val}/*.png, 255
# ignored. `CAMVID_ROOT` moves the data.
_base_ = './segmentation.py'
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
train_pipeline = _base_.train_pipeline
train_pipeline[3].scale = scale
train_pipeline[4].crop_size = crop_size
test_pipeline = _base_.test_pipeline
test_pipeline[1].scale = scale
tta_pipeline = _base_.tta_pipeline
tta_pipeline[1].transforms[0] = [dict(type='Resize', scale_factor=r, keep_ratio=True) for r in (0.75, 1.0, 1.25, 1.5)]
train_dataloader = dict(
    batch_size=8,
    dataset=dict(
        type=dataset_type,
        metainfo=metainfo,
        data_root=data_root,
        data_prefix=dict(img_path='img_dir/train', seg_map_path='ann_dir/train'),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    dataset=dict(
        type=dataset_type,
        metainfo=metainfo,
        data_root=data_root,
        data_prefix=dict(img_path='img_dir/val', seg_map_path='ann_dir/val'),
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
