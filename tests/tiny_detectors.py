"""Configs of small detectors of mmdet, not trained, whose region features have 16 numbers, those of 'c4' 512."""

PIPELINE = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(96, 64), keep_ratio=False),
    dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
]
NMS = dict(type='nms', iou_threshold=0.9)
CODER = dict(type='DeltaXYWHBBoxCoder', target_means=[0.0] * 4, target_stds=[0.1, 0.1, 0.2, 0.2])
BACKBONE = dict(
    type='ResNet', depth=18, base_channels=8, num_stages=4, out_indices=(0, 1, 2, 3), norm_cfg=dict(type='BN')
)
HEAD = dict(
    type='Shared2FCBBoxHead', in_channels=16, fc_out_channels=16, roi_feat_size=7, num_classes=3, bbox_coder=CODER
)


def _extractor(strides, channels=16):
    layer = dict(type='RoIAlign', output_size=7, sampling_ratio=0)
    return dict(type='SingleRoIExtractor', roi_layer=layer, out_channels=channels, featmap_strides=strides)


def detector(name):
    """Return ``model`` of a config: 'faster', 'faster 4conv', 'faster average', 'mask', 'cascade', 'c4' or 'retina'."""
    if name == 'retina':
        return dict(
            type='RetinaNet',
            data_preprocessor=dict(type='DetDataPreprocessor', mean=[127.0] * 3, std=[60.0] * 3, pad_size_divisor=32),
            backbone=BACKBONE,
            neck=dict(type='FPN', in_channels=[8, 16, 32, 64], out_channels=16, start_level=1, num_outs=3),
            bbox_head=dict(
                type='RetinaHead',
                num_classes=3,
                in_channels=16,
                feat_channels=16,
                stacked_convs=1,
                anchor_generator=dict(
                    type='AnchorGenerator', octave_base_scale=4, scales_per_octave=1, ratios=[1.0], strides=[8, 16, 32]
                ),
                bbox_coder=CODER,
            ),
            test_cfg=dict(nms_pre=100, min_bbox_size=0, score_thr=0.05, nms=NMS, max_per_img=100),
        )
    head = dict(HEAD)
    if name == 'faster 4conv':
        head.update(type='Shared4Conv1FCBBoxHead', conv_out_channels=16)
    elif name == 'faster average':
        head.update(with_avg_pool=True)
    roi_head = dict(type='StandardRoIHead', bbox_roi_extractor=_extractor([4, 8, 16, 32]), bbox_head=head)
    strides = [4, 8, 16, 32, 64]
    if name == 'mask':
        roi_head.update(
            mask_roi_extractor=_extractor([4, 8, 16, 32]), mask_head=dict(type='FCNMaskHead', num_classes=3)
        )
    elif name == 'cascade':
        roi_head.update(
            type='CascadeRoIHead',
            num_stages=2,
            stage_loss_weights=[1, 1],
            bbox_head=[dict(head, reg_class_agnostic=True)] * 2,
        )
    model = dict(
        type='FasterRCNN',
        data_preprocessor=dict(type='DetDataPreprocessor', mean=[127.0] * 3, std=[60.0] * 3, pad_size_divisor=32),
        backbone=BACKBONE,
        neck=dict(type='FPN', in_channels=[8, 16, 32, 64], out_channels=16, num_outs=5),
        rpn_head=dict(type='RPNHead', in_channels=16, feat_channels=16),
        roi_head=roi_head,
        train_cfg=None,
        test_cfg=dict(
            rpn=dict(nms_pre=100, max_per_img=60, nms=NMS, min_bbox_size=0),
            rcnn=dict(score_thr=0.05, nms=NMS, max_per_img=100),
        ),
    )
    if name == 'c4':  # no neck; the last stage of the ResNet is the shared head
        strides = [16]
        del model['neck']
        model.update(
            backbone=dict(
                BACKBONE, base_channels=64, num_stages=3, strides=(1, 2, 2), dilations=(1, 1, 1), out_indices=(2,)
            )
        )
        model['rpn_head'].update(in_channels=256)
        roi_head.update(
            shared_head=dict(type='ResLayer', depth=18),
            bbox_roi_extractor=_extractor([16], 256),
            bbox_head=dict(head, type='BBoxHead', in_channels=512, roi_feat_size=4, with_avg_pool=True),
        )
        del roi_head['bbox_head']['fc_out_channels']
    model['rpn_head'].update(
        anchor_generator=dict(type='AnchorGenerator', scales=[4], ratios=[0.5, 1.0, 2.0], strides=strides),
        bbox_coder=dict(CODER, target_stds=[1.0] * 4),
    )
    return model
