# Clips of DAVIS-2016 at half size, one object each, in DAVIS's layout: JPEGImages/240p, ImageSets/{train,val}.txt.
# `DAVIS_240P_ROOT` moves the data. For short runs on CPUs: small crops of few frames, objects of other clips pasted in.
_base_ = './davis_2017.py'
data_root = '{{$DAVIS_240P_ROOT:data/davis_240p}}'
num_frames = 4
crop_size = (128, 176)
clip_pipeline = [
    dict(type='mmattn.SampleClip', num_frames=num_frames, reference='random'),
    dict(type='mmattn.LoadClipFrames'),
    dict(type='mmattn.LoadClipMasks'),
    dict(type='mmattn.ClipResize', scale=(427, 240), ratio_range=(0.5, 0.9)),
    dict(type='mmattn.ClipRandomAffine', max_rotate=20, scale_range=(0.6, 1.2), max_shear=15, max_shift=0.2, drift=1),
    dict(type='mmattn.ClipRandomCrop', crop_size=crop_size),
    dict(type='mmattn.ClipRandomFlip', prob=0.5),
    dict(type='mmattn.ClipColorJitter', hue=0.5),
]
train_set = dict(
    type='mmattn.DAVISDataset',
    data_root=data_root,
    ann_file='ImageSets/train.txt',
    resolution='240p',
    single_object=True,
)
train_dataloader = dict(
    batch_size=4,
    num_workers=2,
    dataset=dict(
        **train_set,
        _delete_=True,
        pipeline=[
            dict(type='mmattn.SeedAugmentation'),
            *clip_pipeline,
            dict(type='mmattn.ClipCopyPaste', dataset=dict(**train_set, pipeline=clip_pipeline)),
            dict(type='mmattn.PackClip'),
        ],
    ),
)
val_dataloader = dict(
    num_workers=1,
    dataset=dict(data_root=data_root, ann_file='ImageSets/val.txt', resolution='240p', single_object=True),
)
test_dataloader = val_dataloader
