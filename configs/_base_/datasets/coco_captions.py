# COCO in Karpathy's splits, with region features: see docs/captioning.md. `COCO_CAPTIONS_ROOT` moves the data.
_base_ = './captions.py'
data_root = '{{$COCO_CAPTIONS_ROOT:data/coco_captions}}'
dataset = dict(
    data_root=data_root,
    ann_file='dataset_coco.json',
    regions='regions',
)
train_dataloader = dict(dataset=dataset)
val_dataloader = dict(dataset=dataset)
test_dataloader = dict(dataset=dataset)
