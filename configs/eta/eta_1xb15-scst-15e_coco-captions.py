# Self-critical training; `load_from` is a checkpoint of eta_1xb15-15e_coco-captions.py.
_base_ = './eta_1xb15-15e_coco-captions.py'
model = dict(self_critical=dict(samples=5, baseline='greedy'))
custom_hooks = [dict(type='mmattn.SelfCriticalHook')]
optim_wrapper = dict(optimizer=dict(lr=1e-5))
param_scheduler = [dict(type='ConstantLR', factor=1.0, by_epoch=True)]
