# The default of `tools/video_demo.py`. Nothing is trained.
_base_ = ['../_base_/datasets/davis_240p.py', '../_base_/default_runtime_video.py']
model = dict(
    type='mmattn.LabelPropagation',
    num_maps=2,
    radius=6,
    edge_radius=0.065,
    test_cfg=dict(scale=(856, 480), max_frames=16),  # finer maps: half-size frames are doubled
    backbone=dict(
        type='mmseg.MobileNetV2',
        strides=(1, 2, 2, 1, 1, 1, 1),
        dilations=(1, 1, 1, 2, 2, 4, 4),
        out_indices=(2, 4),  # 32 and 96 channels at stride 8
        norm_cfg=dict(type='BN'),
        act_cfg=dict(type='ReLU6'),
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://download.openmmlab.com/mmclassification/v0/mobilenet_v2/'
            'mobilenet_v2_batch256_imagenet_20200708-3b2dc3af.pth',
            prefix='backbone.',
        ),
    ),
)
train_dataloader = val_dataloader = val_evaluator = None
test_cfg = dict(type='TestLoop')
default_hooks = dict(
    visualization=dict(type='mmattn.VOSVisualizationHook'),
    checkpoint_keys=dict(type='mmattn.CheckpointKeysHook', allow=r'^head\.'),  # the classifier of ImageNet
)
