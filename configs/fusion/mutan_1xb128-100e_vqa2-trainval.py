# For the test server: without validation, the last checkpoint. Set `train_cfg.max_epochs` to the best epoch of training
# on train alone.
_base_ = [
    '../_base_/models/mutan.py',
    '../_base_/datasets/vqa2_fusion_trainval.py',
    '../_base_/schedules/fusion_100e.py',
    '../_base_/default_runtime_vqa.py',
]
val_cfg = None
default_hooks = dict(checkpoint=dict(save_best=None))
