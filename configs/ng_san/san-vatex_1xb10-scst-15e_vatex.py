# Self-critical training; `load_from` is a checkpoint of san-vatex_1xb10-15e_vatex.py.
_base_ = './san-vatex_1xb10-15e_vatex.py'
model = dict(self_critical=dict(samples=5, baseline='greedy'))
custom_hooks = [dict(type='mmattn.SelfCriticalHook')]
optim_wrapper = dict(optimizer=dict(lr=1e-5))
param_scheduler = [dict(type='ConstantLR', factor=1.0, by_epoch=True)]
