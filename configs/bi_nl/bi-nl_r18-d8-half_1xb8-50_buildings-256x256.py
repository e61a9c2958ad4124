_base_ = './nl_r18-d8-half_1xb8-50_buildings-256x256.py'
model = dict(decode_head=dict(type='mmattn.BiNLHead'))
