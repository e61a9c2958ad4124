_base_ = './unet-ba_r18-d8_1xb12-100e_helen-aligned-448x448.py'
model = dict(decode_head=dict(block=dict(type='ConvModule', kernel_size=3, padding=1)))
param_scheduler = [dict(type='PolyLR', eta_min=0, power=0.9, begin=0, end=16667, by_epoch=False)]
