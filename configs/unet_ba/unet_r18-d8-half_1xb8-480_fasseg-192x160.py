_base_ = './unet-ba_r18-d8-half_1xb8-480_fasseg-192x160.py'
model = dict(decode_head=dict(block=dict(type='ConvModule', kernel_size=3, padding=1)))
