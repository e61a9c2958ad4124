# MUTAN and its generalisations: a constant rate.
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='Adam', lr=1e-4))
param_scheduler = [dict(type='ConstantLR', factor=1.0, by_epoch=True)]
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=100, val_interval=1)
