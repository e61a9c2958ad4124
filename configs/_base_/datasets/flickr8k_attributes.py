# With attributes: `tools/dataset_converters/caption_attributes.py` writes the file.
_base_ = './flickr8k.py'
data_root = '{{$FLICKR8K_ROOT:data/flickr8k}}'
attributes = dict(attributes='attributes.json')
train_dataloader = dict(dataset=attributes)
val_dataloader = dict(dataset=attributes)
test_dataloader = dict(dataset=attributes)
