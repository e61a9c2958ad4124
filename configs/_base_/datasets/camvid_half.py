# CamVid at half resolution, for short runs on CPUs; scored at full resolution.
_base_ = './camvid.py'
scale = (240, 180)
crop_size = (180, 180)
train_pipeline = _base_.train_pipeline
train_pipeline[3].update(scale=scale, ratio_range=(1.0, 1.5))
train_pipeline[4].crop_size = crop_size
del train_pipeline[6]
test_pipeline = _base_.test_pipeline
test_pipeline[1].scale = scale
train_dataloader = dict(num_workers=2, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(num_workers=2, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
