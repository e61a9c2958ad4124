# One pair of activations in all branches: `--cfg-options model.head.fusion.query_activation=tanh` and so on, 25 runs.
_base_ = './mutan_1xb128-100e_vqa1.py'
train_dataloader = dict(dataset=dict(fraction=0.1))
train_cfg = dict(max_epochs=5)
