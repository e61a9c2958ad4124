_base_ = './sst-grid_r18-d8-half_1xb4-400_davis-240p.py'
# √H of the training's map, 4×16×22.
model = dict(attention=dict(type='mmattn.StridedAttention3d', step=4))
