# A backbone for `tools/dataset_converters/grid_features.py`: MobileNetV2 with the weights `mmcls://mobilenet_v2` of
# OpenMMLab's classifier, which are downloaded when they are first used. Its last map has 320 channels.
default_scope = 'mmseg'
model = dict(type='MobileNetV2', norm_cfg=dict(type='BN'), act_cfg=dict(type='ReLU6'))
data_preprocessor = dict(
    type='mmengine.ImgDataPreprocessor', mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], bgr_to_rgb=True
)
