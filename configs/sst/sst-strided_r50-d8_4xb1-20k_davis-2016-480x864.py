# From YouTube-VOS' last checkpoint, given with `--cfg-options load_from=…`.
_base_ = [
    '../_base_/models/sst_r50-d8.py',
    '../_base_/datasets/davis_2016.py',
    '../_base_/default_runtime_video.py',
    '../_base_/schedules/adam_video_20k.py',
    '../_base_/datasets/video_480x864.py',
]
train_dataloader = dict(dataset=dict(pipeline={{_base_.train_pipeline_480x864}}))
model = dict(
    attention=dict(type='mmattn.StridedAttention3d', step=8),
    test_cfg=dict(scale={{_base_.scale_480x864}}),
)
