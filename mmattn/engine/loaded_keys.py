"""How many keys of a model a checkpoint fills. mmengine would go on with random weights after one warning."""

import logging
from collections.abc import Callable
from itertools import chain
from typing import Any

from mmengine.logging import print_log
from torch import Tensor, nn

from mmattn._compat import tensor_version
from mmattn.utils.faults import shorten

_latest = dict(address='the checkpoint')


def remember_checkpoint(address: str) -> None:
    """Remember which checkpoint is read, for messages: where weights are loaded, mmengine does not know it."""
    _latest['address'] = address


def load_and_report(load: Callable, module: nn.Module, state_dict: dict, *args: Any, **kwargs: Any) -> None:
    """Load weights with ``load``, mmengine's ``load_state_dict``, and log the share of the module's keys that it fills.

    A key is filled if its tensor changes, whatever its name in the checkpoint: modules may convert older weights. A
    share below 1 is a warning.

    Raises:
        ValueError: no key is filled.
    """
    before = {key: (x, tensor_version(x)) for key, x in _saved_tensors(module).items()}
    load(module, state_dict, *args, **kwargs)
    after = _saved_tensors(module)
    missing = [key for key, (x, version) in before.items() if after.get(key) is x and tensor_version(x) == version]
    said = f'{_latest["address"]} fills {len(before) - len(missing)} of {len(before)} keys of {type(module).__name__}'
    if missing and len(missing) == len(before):
        names = (', '.join(shorten(list(keys), 3)) for keys in (before, state_dict))
        raise ValueError('{}: the model has {}; the checkpoint has {}'.format(said, *names))
    if missing:
        print_log(f'{said}. Not filled: {", ".join(shorten(missing, 3))}', 'current', logging.WARNING)
    else:
        print_log(said, 'current')


def _saved_tensors(module: nn.Module) -> dict[str, Tensor]:
    saved = module.state_dict().keys()  # without the buffers that no checkpoint has
    tensors = chain(module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    # Checkpoints from before PyTorch 0.4.1 lack num_batches_tracked. Tensors of inference mode have no version.
    counters = {key for key in saved if key.endswith('num_batches_tracked')}
    return {key: x for key, x in tensors if key in saved - counters and not x.is_inference()}
