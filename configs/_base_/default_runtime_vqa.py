# Checks, checkpoints and logs of training by epochs; the best checkpoint has the highest accuracy in the validation.
_base_ = './default_runtime_captions.py'
default_hooks = dict(checkpoint=dict(save_best='accuracy'))
