# Table 5.3, row "K Embedding".
_base_ = './sst-grid_r50-d8_4xb1-100k_youtube-vos-2018-240x432.py'
model = dict(attention=dict(temporal_position='relative'))
