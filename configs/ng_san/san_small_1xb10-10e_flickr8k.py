_base_ = [
    '../_base_/models/san_small.py',
    '../_base_/datasets/flickr8k.py',
    '../_base_/schedules/caption_small.py',
    '../_base_/default_runtime_captions.py',
]
