_base_ = [
    '../_base_/models/ban.py',
    '../_base_/datasets/vqa2.py',
    '../_base_/schedules/ban_13e.py',
    '../_base_/default_runtime_vqa.py',
]
# Tables 1 and 2 have the accuracy on the validation split.
test_dataloader = dict(dataset=dict(ann_file='questions_val.json'))
custom_hooks = [dict(type='mmattn.WordVectorHook', file='{{$GLOVE_ROOT:data/glove}}/glove.6B.300d.txt')]
