# Stage 1.
_base_ = './sst-grid_r50-d8_4xb1-100k_youtube-vos-2018-240x432.py'
# ⌈√side⌉ of the training's map, 8×30×54.
model = dict(attention=dict(type='mmattn.StridedAttention3d', step=(3, 6, 8)))
