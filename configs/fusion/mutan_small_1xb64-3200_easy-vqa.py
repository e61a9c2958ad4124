_base_ = [
    '../_base_/models/mutan_small.py',
    '../_base_/datasets/easy_vqa_fusion.py',
    '../_base_/schedules/adamax_3200.py',
    '../_base_/default_runtime_vqa_iters.py',
]
# A small network reads the pictures, and is trained along: 4×4 positions of 128 channels.
model = dict(vocab_size=30, num_answers=13, image_encoder=dict(type='mmattn.ConvImageEncoder'))
