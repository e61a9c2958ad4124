# Cityscapes as chapter 4 of the thesis trains on it: scale 0.5–2.0.
_base_ = './cityscapes.py'
train_pipeline = _base_.train_pipeline
train_pipeline[3].ratio_range = (0.5, 2.0)
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
