_base_ = './bi-cc_r101-d8_4xb2-80k_cityscapes-769x769.py'
model = dict(decode_head=dict(window_size=63))
