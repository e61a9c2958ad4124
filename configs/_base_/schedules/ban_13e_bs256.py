# As the published code: half of the rate, for batches of 256. Also for the small networks.
_base_ = './ban_13e.py'
optim_wrapper = dict(optimizer=dict(lr=2e-3))
