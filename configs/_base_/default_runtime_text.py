_base_ = './default_runtime_video.py'
