# The same for training by iterations.
_base_ = './default_runtime_vqa.py'
default_hooks = dict(logger=dict(log_metric_by_epoch=False), checkpoint=dict(by_epoch=False, interval=400))
log_processor = dict(by_epoch=False)
