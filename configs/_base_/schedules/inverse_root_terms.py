# The recipe of the empirical study: Adam, 1e-3 after 4,000 updates, 100,000 updates of 30,000 + 30,000 tokens.
_base_ = './inverse_root_base.py'
optim_wrapper = dict(optimizer=dict(lr=1e-3, eps=1e-9))
