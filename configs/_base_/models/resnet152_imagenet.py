# A backbone for `tools/dataset_converters/grid_features.py`: ResNet-152. Its last map has 2,048 channels, at 14×14
# positions of a picture of 448×448. torchvision's ImageNet weights load:
# https://download.pytorch.org/models/resnet152-394f9c45.pth
default_scope = 'mmseg'
model = dict(type='ResNet', depth=152, norm_cfg=dict(type='BN'))
data_preprocessor = dict(
    type='mmengine.ImgDataPreprocessor', mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], bgr_to_rgb=True
)
