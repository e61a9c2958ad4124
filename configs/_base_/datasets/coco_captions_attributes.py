# With attributes: `tools/dataset_converters/caption_attributes.py` writes the file.
_base_ = './coco_captions.py'
data_root = '{{$COCO_CAPTIONS_ROOT:data/coco_captions}}'
attributes = dict(attributes='attributes.json')
train_dataloader = dict(dataset=attributes)
val_dataloader = dict(dataset=attributes)
test_dataloader = dict(dataset=attributes)
