_base_ = [
    '../_base_/models/mutan_small.py',
    '../_base_/datasets/coco_qa_fusion.py',
    '../_base_/schedules/fusion_20e.py',
    '../_base_/default_runtime_vqa.py',
]
