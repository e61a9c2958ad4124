# LFW-PL, 3 classes at 250×250, as `tools/dataset_converters/lfw_pl.py` writes it: img_dir/{train,val,test}/*.jpg and
# ann_dir/{train,val,test}/*.png. `LFW_PL_ROOT` moves the data. The thesis says neither scale nor crop nor augmentation:
# these are ours.
_base_ = './helen.py'
dataset_type = 'mmattn.LFWPLDataset'
data_root = '{{$LFW_PL_ROOT:data/lfw_pl}}'
scale = (250, 250)
crop_size = (224, 224)
train_pipeline = _base_.train_pipeline
train_pipeline[3].scale = scale
train_pipeline[4].crop_size = crop_size
train_pipeline[5].pop('swap_seg_labels')
test_pipeline = _base_.test_pipeline
del test_pipeline[1]
tta_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='TestTimeAug',
        transforms=[
            [dict(type='Resize', scale_factor=r, keep_ratio=True) for r in (0.75, 1.0, 1.25)],
            [dict(type='RandomFlip', prob=p, direction='horizontal') for p in (0.0, 1.0)],
            [dict(type='LoadAnnotations')],
            [dict(type='PackSegInputs')],
        ],
    ),
]
train_dataloader = dict(dataset=dict(type=dataset_type, data_root=data_root, pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(type=dataset_type, data_root=data_root, pipeline=test_pipeline))
test_dataloader = dict(dataset=dict(type=dataset_type, data_root=data_root, pipeline=test_pipeline))
val_evaluator = dict(_delete_=True, type='mmattn.FaceParsingMetric', columns=('skin', 'hair', 'background', 'accuracy'))
test_evaluator = val_evaluator
