_base_ = './nl_r50-d8_1xb8-4k_camvid-360x360.py'
model = dict(decode_head=dict(type='mmattn.BiNLHead'))
