# Few clips, and photographs with masks: those of davis_240p.py, and the clips of one frame in `STILLS_ROOT` that
# `tools/dataset_converters/still_clips.py` makes. Objects of both are followed and pasted. A clip is drawn 60 times as
# often as a photograph: six clips are 42 % of the samples beside 500 photographs.
_base_ = './davis_240p.py'
data_root = '{{$DAVIS_240P_ROOT:data/davis_240p}}'
clip_pipeline = [
    dict(type='mmattn.SampleClip', num_frames=4, reference='random'),
    dict(type='mmattn.LoadClipFrames'),
    dict(type='mmattn.LoadClipMasks', max_objects=1),
    dict(type='mmattn.ClipResize', scale=(427, 240), ratio_range=(0.5, 0.9)),
    dict(type='mmattn.ClipRandomAffine', max_rotate=20, scale_range=(0.6, 1.2), max_shear=15, max_shift=0.2, drift=1),
    dict(type='mmattn.ClipRandomCrop', crop_size=(128, 176)),
    dict(type='mmattn.ClipRandomFlip', prob=0.5),
    dict(type='mmattn.ClipColorJitter', hue=0.5),
]
clips = dict(
    type='mmattn.DAVISDataset',
    data_root=data_root,
    ann_file='ImageSets/train.txt',
    resolution='240p',
    single_object=True,
)
stills = dict(type='mmattn.VideoFolderDataset', data_root='{{$STILLS_ROOT:data/stills}}')
pasted = dict(
    type='ConcatDataset',
    datasets=[
        dict(type='RepeatDataset', times=60, dataset=dict(**clips, pipeline=clip_pipeline)),
        dict(**stills, pipeline=clip_pipeline),
    ],
)
pipeline = [
    dict(type='mmattn.SeedAugmentation'),
    *clip_pipeline,
    dict(type='mmattn.ClipCopyPaste', dataset=pasted),
    dict(type='mmattn.PackClip'),
]
train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='ConcatDataset',
        datasets=[
            dict(type='RepeatDataset', times=60, dataset=dict(**clips, pipeline=pipeline)),
            dict(**stills, pipeline=pipeline),
        ],
    )
)
