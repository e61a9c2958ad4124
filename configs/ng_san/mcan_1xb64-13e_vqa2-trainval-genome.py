# For the test server: without validation, the last checkpoint.
_base_ = [
    '../_base_/models/mcan.py',
    '../_base_/datasets/vqa2_trainval_genome.py',
    '../_base_/schedules/mcan_13e.py',
    '../_base_/default_runtime_vqa.py',
]
train_dataloader = dict(batch_size=64)
val_cfg = None
default_hooks = dict(checkpoint=dict(save_best=None))
custom_hooks = [dict(type='mmattn.WordVectorHook', file='{{$GLOVE_ROOT:data/glove}}/glove.6B.300d.txt')]
