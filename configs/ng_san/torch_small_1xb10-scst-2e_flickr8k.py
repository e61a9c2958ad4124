# Self-critical training; `load_from` is a checkpoint of torch_small_1xb10-10e_flickr8k.py.
_base_ = './torch_small_1xb10-10e_flickr8k.py'
model = dict(self_critical=dict(samples=5, baseline='mean'))
custom_hooks = [dict(type='mmattn.SelfCriticalHook')]
optim_wrapper = dict(optimizer=dict(lr=5e-5))
param_scheduler = [dict(type='ConstantLR', factor=1.0, by_epoch=True)]
train_cfg = dict(max_epochs=2)
