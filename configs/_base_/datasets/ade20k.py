# ADE20K with the scale, 0.75–2.0, and the crops, 512×512, of chapter 3 of the thesis. `ADE20K_ROOT` moves the data.
_base_ = './segmentation.py'
dataset_type = 'ADE20KDataset'
data_root = '{{$ADE20K_ROOT:data/ade/ADEChallengeData2016}}'
scale = (2048, 512)
crop_size = (512, 512)
train_pipeline = _base_.train_pipeline
train_pipeline[2].reduce_zero_label = True
train_pipeline[3].scale = scale
train_pipeline[4].crop_size = crop_size
test_pipeline = _base_.test_pipeline
test_pipeline[1].scale = scale
test_pipeline[2].reduce_zero_label = True
tta_pipeline = _base_.tta_pipeline
# As in MMSegmentation of 2020: multiples of the scale of a test. Today, it has multiples of each image's own size.
tta_pipeline[1].transforms[0] = [
    dict(type='Resize', scale=(int(2048 * r), int(512 * r)), keep_ratio=True) for r in (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
]
tta_pipeline[1].transforms[2][0].reduce_zero_label = True
train_dataloader = dict(
    batch_size=2,
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        data_prefix=dict(img_path='images/training', seg_map_path='annotations/training'),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        data_prefix=dict(img_path='images/validation', seg_map_path='annotations/validation'),
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
