# FASSEG, faces at many poses, 6 classes, 256 high and mostly 180 to 260 wide, in mmseg's layout:
# img_dir/{train,val}/*.jpg and ann_dir/{train,val}/*.png. `FASSEG_ROOT` moves the data. For short runs on CPUs: small
# crops, and colours as they are.
_base_ = './camvid.py'
data_root = '{{$FASSEG_ROOT:data/fasseg}}'
metainfo = dict(
    classes=('background', 'skin', 'hair', 'eyes', 'nose', 'mouth'),
    palette=[[0, 0, 0], [255, 205, 160], [120, 90, 60], [0, 0, 230], [0, 150, 60], [255, 0, 255]],
)
scale = (256, 256)
crop_size = (192, 160)
train_pipeline = _base_.train_pipeline
train_pipeline[3].update(scale=scale, ratio_range=(0.75, 1.25))
train_pipeline[4] = dict(type='RandomCrop', crop_size=crop_size)
del train_pipeline[6]
test_pipeline = _base_.test_pipeline
del test_pipeline[1]
train_dataloader = dict(num_workers=2, dataset=dict(metainfo=metainfo, data_root=data_root, pipeline=train_pipeline))
val_dataloader = dict(num_workers=2, dataset=dict(metainfo=metainfo, data_root=data_root, pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(
    _delete_=True,
    type='mmattn.FaceParsingMetric',
    columns=('skin', 'hair', 'eyes', 'nose', 'mouth', 'background', 'accuracy', 'overall'),
    overall=('eyes', 'nose', 'mouth'),
)
test_evaluator = val_evaluator
