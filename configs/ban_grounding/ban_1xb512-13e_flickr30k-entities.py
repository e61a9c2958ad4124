_base_ = [
    '../_base_/models/phrase_grounder.py',
    '../_base_/datasets/flickr30k_grounding.py',
    '../_base_/schedules/ban_13e.py',
    '../_base_/default_runtime_grounding.py',
]
custom_hooks = [dict(type='mmattn.WordVectorHook', file='{{$GLOVE_ROOT:data/glove}}/glove.6B.300d.txt')]
