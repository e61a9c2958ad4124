# The protocol of the published code: half of the batch, and of the rate.
_base_ = './ban-4_1xb512-13e_vqa2.py'
train_dataloader = dict(batch_size=256)
optim_wrapper = dict(optimizer=dict(lr=2e-3))
