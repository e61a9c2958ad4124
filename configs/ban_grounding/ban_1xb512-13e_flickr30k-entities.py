_base_ = [
    '../_base_/models/phrase_grounder.py',
    '../_base_/datasets/flickr30k_grounding.py',
    '../_base_/schedules/grounding_13e.py',
    '../_base_/default_runtime_grounding.py',
]
