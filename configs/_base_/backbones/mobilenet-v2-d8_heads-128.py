# The same with wider heads than those of `--network small`.
_base_ = './mobilenet-v2-d8.py'
model = dict(decode_head=dict(channels=128, c1_channels=24), auxiliary_head=dict(channels=64))
