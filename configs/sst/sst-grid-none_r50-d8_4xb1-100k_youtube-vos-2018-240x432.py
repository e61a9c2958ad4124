# Table 5.3, row "None".
_base_ = './sst-grid_r50-d8_4xb1-100k_youtube-vos-2018-240x432.py'
model = dict(attention=dict(spatial_position='none', temporal_position='none'))
