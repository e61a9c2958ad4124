# With all downsamplings of ResNet-18, as the text's "upsampled by two times" would have it.
_base_ = './unet-ba_r18-d8_1xb12-100e_helen-448x448.py'
model = dict(backbone=dict(strides=(1, 2, 2, 2), dilations=(1, 1, 1, 1)))
