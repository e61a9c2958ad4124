# Stage 1. Table 5.3, row "T Sinusoidal".
_base_ = [
    '../_base_/models/sst_r50-d8.py',
    '../_base_/datasets/youtube_vos_2018.py',
    '../_base_/default_runtime_video.py',
    '../_base_/schedules/adam_video_100k.py',
]
val_cfg = None
default_hooks = dict(checkpoint=dict(save_best=None))
