# Table 4.2, row d: 4 heads.
_base_ = './deeplabv3plus-ba_r101-d8_4xb2-40k_cityscapes-769x769.py'
model = dict(decode_head=dict(block=dict(type='mmattn.LocalBilateralAttention', num_heads=4)))
