# FASSEG, tested on faces turned by 30 degrees clockwise, which training and validation do not contain. The corners that
# the turned images do not fill are black, and ignored.
_base_ = './fasseg.py'
data_root = '{{$FASSEG_ROOT:data/fasseg}}'
turned_pipeline = [
    *_base_.test_pipeline[:-1],
    dict(type='RandomRotate', prob=1.0, degree=(30, 30)),
    _base_.test_pipeline[-1],
]
test_dataloader = dict(dataset=dict(pipeline=turned_pipeline))
