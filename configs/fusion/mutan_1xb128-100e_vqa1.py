_base_ = [
    '../_base_/models/mutan.py',
    '../_base_/datasets/vqa1.py',
    '../_base_/schedules/fusion_100e.py',
    '../_base_/default_runtime_vqa.py',
]
# Table 3.1 has the accuracy on the validation split.
test_dataloader = dict(dataset=dict(ann_file='questions_val.json'))
