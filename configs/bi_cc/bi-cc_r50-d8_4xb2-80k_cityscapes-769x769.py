_base_ = './cc_r50-d8_4xb2-80k_cityscapes-769x769.py'
model = dict(decode_head=dict(type='mmattn.BiCCHead'))
