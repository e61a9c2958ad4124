# Flickr8k: `tools/dataset_converters/flickr8k.py FOLDER`. `FLICKR8K_ROOT` moves the data. Words of the training alone.
_base_ = './captions.py'
data_root = '{{$FLICKR8K_ROOT:data/flickr8k}}'
dataset = dict(
    data_root=data_root,
    ann_file='dataset_flickr8k.json',
    regions='regions',
    vocab_splits=('train',),
)
train_dataloader = dict(dataset=dataset)
val_dataloader = dict(dataset=dataset)
test_dataloader = dict(dataset=dataset)
