# HELEN, the faces aligned by their landmarks: `tools/dataset_converters/helen.py --align`. `HELEN_ALIGNED_ROOT` moves
# the data.
_base_ = './helen.py'
data_root = '{{$HELEN_ALIGNED_ROOT:data/helen_aligned}}'
train_dataloader = dict(dataset=dict(data_root=data_root))
val_dataloader = dict(dataset=dict(data_root=data_root))
test_dataloader = dict(dataset=dict(data_root=data_root))
