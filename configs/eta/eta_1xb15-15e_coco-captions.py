_base_ = [
    '../_base_/models/eta.py',
    '../_base_/datasets/coco_captions_attributes.py',
    '../_base_/schedules/eta_15e.py',
    '../_base_/default_runtime_captions.py',
]
train_dataloader = dict(batch_size=15)  # with 5 captions each, 75 pairs
