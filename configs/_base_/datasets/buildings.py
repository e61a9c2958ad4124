# The sample of `tools/dataset_converters/sample_data.py buildings`: 8 + 4 aerial tiles, about 571×571.
_base_ = './camvid.py'
data_root = '{{$BUILDINGS_ROOT:data/buildings}}'
metainfo = dict(classes=('background', 'building'), palette=[[40, 60, 80], [255, 140, 0]])
crop_size = (256, 256)
train_pipeline = _base_.train_pipeline
train_pipeline[4].update(crop_size=crop_size, cat_max_ratio=0.9)
del train_pipeline[6], train_pipeline[3]
test_pipeline = _base_.test_pipeline
del test_pipeline[1]
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
