# Stage 2: give stage 1's checkpoint with `--cfg-options load_from=…`.
_base_ = [
    '../_base_/models/sst_r50-d8.py',
    '../_base_/datasets/youtube_vos_2019.py',
    '../_base_/default_runtime_video.py',
    '../_base_/schedules/adam_video_20k.py',
    '../_base_/datasets/video_480x864.py',
]
train_dataloader = dict(dataset=dict(pipeline={{_base_.train_pipeline_480x864}}))
model = dict(
    attention=dict(type='mmattn.StridedAttention3d', step=8),
    test_cfg=dict(scale={{_base_.scale_480x864}}),
)
val_cfg = None
default_hooks = dict(checkpoint=dict(save_best=None))
