"""Clothing Co-Parsing in eleven classes, 576 high and 256 wide, for ``reproduce.py --dataset``.

The layout is mmseg's: ``img_dir/SPLIT/*.jpg`` and ``ann_dir/SPLIT/*.png`` of the splits ``pilot_train``, ``pilot_val``,
``train`` and ``test``; 255, which is ignored, marks small accessories. ``CCP_ROOT`` moves the data. A photograph is
trained on whole, and mirrored half of the time. Its labels have a quarter of its size there, in which the loss takes a
tenth of the time, and their full size in the test.
"""

_base_ = '../../configs/_base_/datasets/camvid.py'
data_root = '{{$CCP_ROOT:data/ccp}}'
metainfo = dict(
    classes=(
        'background',
        'hair',
        'skin',
        'upper',
        'outer',
        'dress',
        'skirt',
        'trousers',
        'legwear',
        'shoes',
        'bag',
    ),
    palette=[
        [235, 235, 235],
        [96, 64, 32],
        [255, 205, 160],
        [0, 110, 200],
        [20, 40, 110],
        [200, 30, 90],
        [255, 140, 0],
        [0, 130, 80],
        [130, 200, 120],
        [60, 60, 60],
        [150, 80, 190],
    ],
)
train_pipeline = _base_.train_pipeline
train_pipeline[4] = dict(type='RandomCrop', crop_size=(576, 256))
train_pipeline[6] = dict(type='mmdet.SegRescale', scale_factor=0.25, backend='pillow')
del train_pipeline[3]
test_pipeline = _base_.test_pipeline
del test_pipeline[1]
common = dict(metainfo=metainfo, data_root=data_root)
train_dataloader = dict(dataset=dict(pipeline=train_pipeline, **common))
# One photograph: nothing is chosen by it, and the validation of the pilot has its own config.
val_dataloader = dict(
    num_workers=0,
    persistent_workers=False,
    dataset=dict(
        data_prefix=dict(img_path='img_dir/pilot_val', seg_map_path='ann_dir/pilot_val'),
        indices=1,
        pipeline=test_pipeline,
        **common,
    ),
)
test_dataloader = dict(
    num_workers=0,
    persistent_workers=False,
    dataset=dict(
        data_prefix=dict(img_path='img_dir/test', seg_map_path='ann_dir/test'), pipeline=test_pipeline, **common
    ),
)
