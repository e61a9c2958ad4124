# Stage 2: give stage 1's checkpoint with `--cfg-options load_from=…`.
_base_ = [
    '../_base_/models/sst_r50-d8.py', '../_base_/datasets/youtube_vos_2019.py',
    '../_base_/default_runtime_video.py', '../_base_/schedules/adam_video_20k.py'
]
scale = (864, 480)
crop_size = (480, 864)
train_pipeline = [
    dict(type='mmattn.SeedAugmentation'),
    dict(type='mmattn.SampleClip', num_frames=14, reference='random'),
    dict(type='mmattn.LoadClipFrames'),
    dict(type='mmattn.LoadClipMasks', max_objects=2),
    dict(type='mmattn.ClipResize', scale=scale, ratio_range=(1.0, 1.5)),
    dict(type='mmattn.ClipRandomAffine'),
    dict(type='mmattn.ClipRandomCrop', crop_size=crop_size),
    dict(type='mmattn.ClipRandomFlip', prob=0.5),
    dict(type='mmattn.ClipColorJitter'),
    dict(type='mmattn.PackClip')
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
model = dict(attention=dict(type='mmattn.StridedAttention3d'), test_cfg=dict(scale=scale))
val_cfg = None
default_hooks = dict(checkpoint=dict(save_best=None))
