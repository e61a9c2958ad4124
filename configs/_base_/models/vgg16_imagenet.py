# A backbone for `tools/dataset_converters/grid_features.py`: VGG-16 up to its last convolution, 512 channels at stride
# 16, for the weights of torchvision's classifier, https://download.pytorch.org/models/vgg16-397923af.pth.
default_scope = 'mmengine'
model = dict(type='mmcv.cnn.VGG', depth=16, out_indices=(4,), with_last_pool=False)
data_preprocessor = dict(
    type='mmengine.ImgDataPreprocessor', mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], bgr_to_rgb=True
)
