_base_ = [
    '../_base_/models/san.py',
    '../_base_/datasets/vatex.py',
    '../_base_/schedules/san_15e.py',
    '../_base_/default_runtime_captions.py',
]
# 1 + 1 layers; time steps have an order; captions are longer than COCO's.
model = dict(num_features=1024, num_layers=1, positions='sinusoidal', test_cfg=dict(max_length=30))
