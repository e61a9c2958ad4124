# Flickr30k Entities: `tools/dataset_converters/flickr_entities.py FOLDER`. `FLICKR30K_GROUNDING_ROOT` moves the data.
_base_ = './grounding.py'
data_root = '{{$FLICKR30K_GROUNDING_ROOT:data/flickr30k_grounding}}'
train_dataloader = dict(dataset=dict(data_root=data_root))
val_dataloader = dict(dataset=dict(data_root=data_root))
test_dataloader = dict(dataset=dict(data_root=data_root))
