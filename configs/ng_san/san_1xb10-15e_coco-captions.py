_base_ = [
    '../_base_/models/san.py',
    '../_base_/datasets/coco_captions.py',
    '../_base_/schedules/san_15e.py',
    '../_base_/default_runtime_captions.py',
]
