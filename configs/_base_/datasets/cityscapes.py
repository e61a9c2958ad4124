# Cityscapes with scale 0.75–2.0 and crops of 769×769, as in chapter 3 of the thesis. `CITYSCAPES_ROOT` moves the data.
_base_ = './segmentation.py'
dataset_type = 'CityscapesDataset'
data_root = '{{$CITYSCAPES_ROOT:data/cityscapes}}'
train_dataloader = dict(
    batch_size=2,
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        data_prefix=dict(img_path='leftImg8bit/train', seg_map_path='gtFine/train'),
        pipeline=_base_.train_pipeline,
    ),
)
val_dataloader = dict(
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        data_prefix=dict(img_path='leftImg8bit/val', seg_map_path='gtFine/val'),
        pipeline=_base_.test_pipeline,
    ),
)
test_dataloader = val_dataloader
