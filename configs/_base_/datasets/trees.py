# The sample of `tools/dataset_converters/sample_data.py trees`: 38 + 9 aerial tiles, about 400×400.
_base_ = './bccd.py'
data_root = '{{$TREES_ROOT:data/trees}}'
metainfo = dict(classes=('Tree',), palette=[(255, 140, 0)])
scale = (400, 400)
train_pipeline = _base_.train_pipeline
train_pipeline[4].scale = scale
test_pipeline = _base_.test_pipeline
test_pipeline[1].scale = scale
train_dataloader = dict(batch_size=4, dataset=dict(metainfo=metainfo, data_root=data_root, pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(metainfo=metainfo, data_root=data_root, pipeline=test_pipeline))
test_dataloader = val_dataloader
