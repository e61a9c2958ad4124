# Table 4.2, row j: the baseline, one 3×3 convolution; its bias, before a norm, is in the count of the table.
_base_ = './deeplabv3plus-ba_r101-d8_4xb2-40k_cityscapes-769x769.py'
model = dict(decode_head=dict(block=dict(type='ConvModule', kernel_size=3, padding=1, bias=True)))
