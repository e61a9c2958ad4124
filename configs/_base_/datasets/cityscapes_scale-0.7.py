# Cityscapes as the empirical study of spatial attention trains on it: scale 0.7–2.0, any crop, colours as they are.
_base_ = './cityscapes.py'
train_pipeline = _base_.train_pipeline
train_pipeline[3].ratio_range = (0.7, 2.0)
del train_pipeline[4].cat_max_ratio
del train_pipeline[6]
train_dataloader = dict(batch_size=1, dataset=dict(pipeline=train_pipeline))
