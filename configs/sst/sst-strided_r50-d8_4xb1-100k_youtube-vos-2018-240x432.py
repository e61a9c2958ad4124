# Stage 1. The step is √H of the thesis, in all stages: a step reads only the relative vectors of its multiples.
_base_ = './sst-grid_r50-d8_4xb1-100k_youtube-vos-2018-240x432.py'
model = dict(attention=dict(type='mmattn.StridedAttention3d', step=8))
