_base_ = './sst-grid_r50-d8_4xb1-20k_davis-2017-480x864.py'
model = dict(attention=dict(type='mmattn.StridedAttention3d', step=8))
