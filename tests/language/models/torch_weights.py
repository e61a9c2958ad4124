"""Weights of a model with the layers of ``nn.Transformer``, under the names of the same model with ours."""

NAMES = {
    'stack.': '',
    'self_attn': 'self_attention.0',
    'multihead_attn': 'cross_attention',
    'linear1': 'feedforward.0',
    'linear2': 'feedforward.3',
    'norm1': 'attention_norm',
}


def from_torch(model):
    """Return the state dict of a model with ``stack='Torch'`` for the model with ``stack='Sequence'``."""
    state = {}
    for name, x in model.state_dict().items():
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)
        if name.startswith('decoder'):
            name = name.replace('norm2', 'cross_attention_norm').replace('norm3', 'feedforward_norm')
        state[name.replace('norm2', 'feedforward_norm')] = x
    return state
