# The part of Flickr30k Entities that is Flickr8k: `tools/dataset_converters/flickr_entities.py FOLDER`.
# `FLICKR8K_GROUNDING_ROOT` moves the data.
_base_ = './grounding.py'
data_root = '{{$FLICKR8K_GROUNDING_ROOT:data/flickr8k_grounding}}'
train_dataloader = dict(dataset=dict(data_root=data_root))
val_dataloader = dict(dataset=dict(data_root=data_root))
test_dataloader = dict(dataset=dict(data_root=data_root))
