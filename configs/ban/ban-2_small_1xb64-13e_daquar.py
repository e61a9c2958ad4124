_base_ = [
    '../_base_/models/ban_small.py',
    '../_base_/datasets/daquar.py',
    '../_base_/schedules/ban_13e_bs256.py',
    '../_base_/default_runtime_vqa.py',
]
model = dict(vocab_size=869, num_answers=968, head=dict(num_glimpses=2))
