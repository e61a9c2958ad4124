_base_ = [
    '../_base_/models/mutan.py',
    '../_base_/datasets/vqa2_fusion.py',
    '../_base_/schedules/fusion_100e.py',
    '../_base_/default_runtime_vqa.py',
]
test_dataloader = dict(dataset=dict(ann_file='questions_val.json'))
