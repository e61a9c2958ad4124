_base_ = './bi-cc_r50-d8_4xb2-80k_cityscapes-769x769.py'
model = dict(decode_head=dict(padding='neg_inf', smoothing='sqrt_dim'))
