_base_ = './cc_r18-d8-half_1xb8-160_camvid-180x180.py'
model = dict(decode_head=dict(type='mmattn.BiCCHead'))
