# For the small networks on COCO-QA. Chosen for the concatenation, before any other fusion was trained.
_base_ = './fusion_100e.py'
optim_wrapper = dict(optimizer=dict(lr=4e-4))
train_cfg = dict(max_epochs=20)
