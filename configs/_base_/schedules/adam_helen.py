# Section 4.4.2: Adam, lr 3e-4, weight decay 1e-5, poly, 100 epochs of 2,000 images in batches of 12. The thesis warms
# up U-Net-BA alone, and says neither how nor how long: linearly, three epochs.
_base_ = './sgd_80k.py'
optimizer = dict(_delete_=True, type='Adam', lr=0.0003, weight_decay=0.00001)
optim_wrapper = dict(optimizer=optimizer)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, begin=0, end=500, by_epoch=False),
    dict(type='PolyLR', eta_min=0, power=0.9, begin=500, end=16667, by_epoch=False),
]
train_cfg = dict(max_iters=16667, val_interval=1667)
default_hooks = dict(checkpoint=dict(interval=1667, max_keep_ckpts=3, save_best='overall', rule='greater'))
auto_scale_lr = dict(base_batch_size=12)
