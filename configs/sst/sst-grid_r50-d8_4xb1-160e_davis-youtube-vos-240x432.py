# Stage 1 with A-GAME's public recipe where the thesis names none: both data sets, one object, flips alone, and a rate
# that falls by 2.5 % per epoch. Frames are sampled as in the thesis; A-GAME takes consecutive ones.
_base_ = [
    '../_base_/models/sst_r50-d8.py',
    '../_base_/datasets/youtube_vos_2018_split.py',
    '../_base_/default_runtime_video.py',
    '../_base_/schedules/adam_video_100k.py',
]
pipeline = [
    dict(type='mmattn.SeedAugmentation'),
    dict(type='mmattn.SampleClip', num_frames=8, reference='random'),
    dict(type='mmattn.LoadClipFrames'),
    dict(type='mmattn.LoadClipMasks', max_objects=1),
    dict(type='mmattn.ClipResize', scale=(432, 240), keep_ratio=False),
    dict(type='mmattn.ClipRandomCrop', crop_size=(240, 432)),  # the frame
    dict(type='mmattn.ClipRandomFlip', prob=0.5),
    dict(type='mmattn.PackClip'),
]
davis = dict(
    type='mmattn.DAVISDataset',
    data_root='{{$DAVIS_ROOT:data/DAVIS}}',
    ann_file='ImageSets/2017/train.txt',
    pipeline=pipeline,
)
youtube_vos = dict(
    type='mmattn.YouTubeVOSDataset', data_root=_base_.data_root, ann_file='meta_train.json', pipeline=pipeline
)
train_dataloader = dict(
    sampler=dict(_delete_=True, type='DefaultSampler', shuffle=True),
    dataset=dict(_delete_=True, type='ConcatDataset', datasets=[davis, youtube_vos]),
)
optim_wrapper = dict(clip_grad=None)
param_scheduler = [dict(type='ExponentialLR', gamma=0.975, by_epoch=True)]
train_cfg = dict(_delete_=True, type='EpochBasedTrainLoop', max_epochs=160, val_interval=10)
default_hooks = dict(checkpoint=dict(by_epoch=True, interval=10), logger=dict(log_metric_by_epoch=True))
log_processor = dict(by_epoch=True)
