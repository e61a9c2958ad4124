"""Eight classes of façades, 320×240: three frozen stages of MobileNetV2, and a head of 48 channels at stride 8.

The layout is mmseg's: ``img_dir/SPLIT/*.jpg`` and ``ann_dir/SPLIT/*.png`` of the splits ``train``, ``val`` and
``test``; 255 is ignored. ``FACADES_ROOT`` is the folder of the data, and ``MOBILENET_V2`` the file of the weights. A
photograph is trained on whole, and mirrored half of the time. Its labels have a quarter of its size for the loss, and
their full size in the test.
"""

_base_ = [
    '../../../configs/_base_/models/r50-d8.py',
    '../../../configs/_base_/datasets/segmentation.py',
    '../../../configs/_base_/default_runtime.py',
    '../../../configs/_base_/schedules/adamw_160.py',
]
custom_imports = dict(imports=['frozen_backbone'])
norm_cfg = dict(type='BN', requires_grad=True)
model = dict(
    data_preprocessor=dict(mean=[127.5] * 3, std=[127.5] * 3, size=(240, 320)),
    pretrained=None,
    backbone=dict(
        _delete_=True,
        type='FrozenBackbone',
        norm_cfg=norm_cfg,
        act_cfg=dict(type='ReLU6'),
        init_cfg=dict(type='Pretrained', checkpoint='{{$MOBILENET_V2:mobilenet_v2_imagenet.pth}}'),
    ),
    decode_head=dict(
        in_channels=32,
        in_index=0,
        channels=48,
        num_classes=8,
        norm_cfg=norm_cfg,
        align_corners=True,
        loss_decode=dict(class_weight=[0.32, 1.2, 2.3, 0.96, 0.6, 0.66, 0.81, 1.14]),
    ),
    auxiliary_head=None,
)

train_pipeline = [
    dict(type='mmattn.SeedAugmentation'),
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomFlip', prob=0.5),
    dict(type='mmdet.SegRescale', scale_factor=0.25, backend='pillow'),
    dict(type='PackSegInputs'),
]
test_pipeline = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations'), dict(type='PackSegInputs')]
common = dict(
    type='BaseSegDataset',
    data_root='{{$FACADES_ROOT:data/facades}}',
    metainfo=dict(
        classes=('building', 'car', 'door', 'pavement', 'road', 'sky', 'vegetation', 'window'),
        palette=[
            [128, 0, 0],
            [128, 0, 128],
            [128, 128, 0],
            [128, 128, 128],
            [128, 64, 0],
            [0, 128, 128],
            [0, 128, 0],
            [0, 0, 128],
        ],
    ),
)
train_dataloader = dict(
    batch_size=8,
    dataset=dict(
        data_prefix=dict(img_path='img_dir/train', seg_map_path='ann_dir/train'), pipeline=train_pipeline, **common
    ),
)
# One photograph: nothing is chosen by the validation.
val_dataloader = dict(
    dataset=dict(
        data_prefix=dict(img_path='img_dir/val', seg_map_path='ann_dir/val'),
        indices=1,
        pipeline=test_pipeline,
        **common,
    )
)
test_dataloader = dict(
    dataset=dict(
        data_prefix=dict(img_path='img_dir/test', seg_map_path='ann_dir/test'), pipeline=test_pipeline, **common
    )
)

param_scheduler = [dict(type='PolyLR', eta_min=0, power=0.9, begin=0, end=600, by_epoch=False)]
train_cfg = dict(max_iters=600, val_interval=600)
default_hooks = dict(checkpoint=dict(interval=150, save_best=None))
