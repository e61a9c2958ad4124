_base_ = [
    '../_base_/models/phrase_grounder_small.py',
    '../_base_/datasets/flickr8k_grounding.py',
    '../_base_/schedules/ban_13e_bs256.py',
    '../_base_/default_runtime_grounding.py',
]
train_dataloader = dict(batch_size=64)
