_base_ = './sst-grid_r18-d8-half_1xb4-400_davis-240p.py'
model = dict(attention=dict(type='mmattn.StridedAttention3d'))
