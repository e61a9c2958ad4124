_base_ = './sst-grid_r50-d8_4xb1-20k_davis-2017-480x864.py'
# ⌈√side⌉ of the training's map, 14×60×108.
model = dict(attention=dict(type='mmattn.StridedAttention3d', step=(4, 8, 11)))
