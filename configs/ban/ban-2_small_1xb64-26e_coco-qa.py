_base_ = [
    '../_base_/models/ban_small.py',
    '../_base_/datasets/coco_qa.py',
    '../_base_/schedules/ban_26e.py',
    '../_base_/default_runtime_vqa.py',
]
model = dict(head=dict(num_glimpses=2))
