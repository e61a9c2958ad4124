# As for captions; the best checkpoint has the highest R@1 in the validation.
_base_ = './default_runtime_captions.py'
default_hooks = dict(checkpoint=dict(save_best='R@1'))
