_base_ = [
    '../_base_/models/phrase_grounder_small.py',
    '../_base_/datasets/flickr8k_grounding.py',
    '../_base_/schedules/grounding_13e.py',
    '../_base_/default_runtime_grounding.py',
]
train_dataloader = dict(batch_size=64)
optim_wrapper = dict(optimizer=dict(lr=2e-3))
