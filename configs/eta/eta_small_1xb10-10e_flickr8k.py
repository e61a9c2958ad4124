_base_ = [
    '../_base_/models/eta_small.py',
    '../_base_/datasets/flickr8k_attributes.py',
    '../_base_/schedules/caption_small.py',
    '../_base_/default_runtime_captions.py',
]
# As the other small captioners, so that they can be compared.
model = dict(label_smoothing=0.0, test_cfg=dict(beam=3))
