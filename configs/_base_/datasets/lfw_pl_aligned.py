# LFW-PL, the faces aligned by their landmarks: `tools/dataset_converters/lfw_pl.py --align`. `LFW_PL_ALIGNED_ROOT`
# moves the data.
_base_ = './lfw_pl.py'
data_root = '{{$LFW_PL_ALIGNED_ROOT:data/lfw_pl_aligned}}'
train_dataloader = dict(dataset=dict(data_root=data_root))
val_dataloader = dict(dataset=dict(data_root=data_root))
test_dataloader = dict(dataset=dict(data_root=data_root))
