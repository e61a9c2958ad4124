# DAVIS-2017: JPEGImages/480p, Annotations/480p, ImageSets/2017/{train,val}.txt. `DAVIS_ROOT` moves the data.
data_root = '{{$DAVIS_ROOT:data/DAVIS}}'
resolution = '480p'
num_frames = 8
scale = (432, 240)  # width, height
crop_size = (240, 432)  # height, width
train_pipeline = [
    dict(type='mmattn.SeedAugmentation'),
    dict(type='mmattn.SampleClip', num_frames=num_frames, reference='random'),
    dict(type='mmattn.LoadClipFrames'),
    dict(type='mmattn.LoadClipMasks', max_objects=3),
    dict(type='mmattn.ClipResize', scale=scale, ratio_range=(1.0, 1.5)),
    dict(type='mmattn.ClipRandomAffine'),
    dict(type='mmattn.ClipRandomCrop', crop_size=crop_size),
    dict(type='mmattn.ClipRandomFlip', prob=0.5),
    dict(type='mmattn.ClipColorJitter'),
    dict(type='mmattn.PackClip'),
]
# The frames of a clip are read when the model takes them.
test_pipeline = [dict(type='mmattn.LoadGivenMasks'), dict(type='mmattn.PackClip')]
train_dataloader = dict(
    batch_size=1,
    num_workers=4,
    persistent_workers=True,
    collate_fn=dict(type='pseudo_collate'),
    sampler=dict(type='mmattn.InfiniteSampler', shuffle=True),
    dataset=dict(
        type='mmattn.DAVISDataset',
        data_root=data_root,
        ann_file='ImageSets/2017/train.txt',
        resolution=resolution,
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    collate_fn=dict(type='pseudo_collate'),
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='mmattn.DAVISDataset',
        data_root=data_root,
        ann_file='ImageSets/2017/val.txt',
        resolution=resolution,
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='mmattn.VOSMetric')
test_evaluator = val_evaluator
