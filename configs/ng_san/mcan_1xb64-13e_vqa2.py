_base_ = [
    '../_base_/models/mcan.py',
    '../_base_/datasets/vqa2_mcan.py',
    '../_base_/schedules/mcan_13e.py',
    '../_base_/default_runtime_vqa.py',
]
# Train on the training split, and test on the validation split: the answers of the test splits are not public.
test_dataloader = dict(dataset=dict(ann_file='questions_val.json'))
custom_hooks = [dict(type='mmattn.WordVectorHook', file='{{$GLOVE_ROOT:data/glove}}/glove.840B.300d.txt')]
