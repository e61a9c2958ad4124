# Self-critical training; `load_from` is a checkpoint of san_1xb10-15e_coco-captions.py.
_base_ = './san_1xb10-15e_coco-captions.py'
model = dict(self_critical=dict(samples=5, baseline='greedy'))
custom_hooks = [dict(type='mmattn.SelfCriticalHook')]
optim_wrapper = dict(optimizer=dict(lr=1e-5, betas=(0.9, 0.999), eps=1e-8))
param_scheduler = [dict(type='MultiStepLR', milestones=[5], gamma=0.5, by_epoch=True)]
