# For the test server: without validation, the last checkpoint.
_base_ = [
    '../_base_/models/ban.py',
    '../_base_/datasets/vqa2_trainval_genome.py',
    '../_base_/schedules/ban_13e.py',
    '../_base_/default_runtime_vqa.py',
]
model = dict(question_encoder=dict(embed_dim=1280), head=dict(num_glimpses=8))
val_cfg = None
default_hooks = dict(checkpoint=dict(save_best=None))
custom_hooks = [dict(type='mmattn.WordVectorHook', file='{{$GLOVE_ROOT:data/glove}}/glove.6B.300d.txt')]
