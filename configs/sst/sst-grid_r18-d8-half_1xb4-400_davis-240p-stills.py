# For few clips: photographs with masks beside them, see the data set's config.
_base_ = [
    '../_base_/models/sst_r18-d8-half.py',
    '../_base_/datasets/davis_240p_stills.py',
    '../_base_/default_runtime_video.py',
    '../_base_/schedules/adam_video_400.py',
]
