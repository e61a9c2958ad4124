_base_ = './sst-strided_r50-d8_4xb1-100k_youtube-vos-2018-240x432.py'
model = dict(appearance=True)
