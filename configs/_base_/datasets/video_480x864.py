# For the second stage: larger frames, fewer objects. A config uses it in addition to its data set.
scale_480x864 = (864, 480)  # width, height
train_pipeline_480x864 = [
    dict(type='mmattn.SeedAugmentation'),
    dict(type='mmattn.SampleClip', num_frames=8, reference='random'),
    dict(type='mmattn.LoadClipFrames'),
    dict(type='mmattn.LoadClipMasks', max_objects=2),
    dict(type='mmattn.ClipResize', scale=scale_480x864, ratio_range=(1.0, 1.5)),
    dict(type='mmattn.ClipRandomAffine'),
    dict(type='mmattn.ClipRandomCrop', crop_size=(480, 864)),  # height, width
    dict(type='mmattn.ClipRandomFlip', prob=0.5),
    dict(type='mmattn.ClipColorJitter'),
    dict(type='mmattn.PackClip'),
]
