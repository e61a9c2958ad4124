"""A hook that stops a run whose checkpoint does not fit the model. mmengine would only warn."""

import re
from collections.abc import Iterable, Mapping, Sequence

from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.runner import Runner
from torch import Tensor
from torch.distributed.fsdp import FullyShardedDataParallel

from mmattn._compat import checkpoint_path, copy_versions
from mmattn.registry import HOOKS


@HOOKS.register_module()
class CheckpointKeysHook(Hook):
    """Raise an error that lists all mismatched keys if a checkpoint does not fit the model. mmengine only warns.

    The error has the patterns that would allow them. The log, also in its file, names the modules of allowed keys.

    The RuntimeError covers ``load_from``, testing and resuming, but not ``pretrained`` or ``init_cfg`` of a part of the
    model. The check uses ``load_state_dict`` of the modules, because some modules convert older keys and shapes.
    Modules wrapped by FSDP hold shards and cannot be checked. The log then has a warning.

    Args:
        allow (str or sequence of str): regular expressions. A key that matches one of them may be missing, unexpected
            or of another shape, for example ``r'\\.conv_seg\\.'`` to fine-tune on other classes. Defaults to none.
        enabled (bool): False disables the check. Defaults to True.

    Example:
        >>> hook = HOOKS.build(dict(type='mmattn.CheckpointKeysHook', allow=r'\\.conv_seg\\.'))
        >>> bool(hook.allow.search('decode_head.conv_seg.weight'))
        True
    """

    priority = 'VERY_HIGH'

    def __init__(self, allow: str | Sequence[str] = (), enabled: bool = True) -> None:
        # As in mmengine, checkpoints from before PyTorch 0.4.1 may lack num_batches_tracked.
        self.allow = re.compile('|'.join([*([allow] if isinstance(allow, str) else allow), r'\.num_batches_tracked$']))
        self.enabled = enabled

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Load the weights strictly, before the Runner loads them without checks."""
        if not self.enabled:
            return
        model = runner.model
        if isinstance(model, FullyShardedDataParallel):
            runner.logger.warning('FSDP: the keys of the checkpoint are not checked')
            return
        while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
            model = model.module
        weights = checkpoint.get('state_dict', checkpoint)
        stripped = type(weights)((re.sub(r'^module\.', '', key), value) for key, value in weights.items())
        expected = type(weights)((key, value) for key, value in stripped.items() if not self.allow.search(key))
        initial = model.state_dict()
        expected.update((key, value) for key, value in initial.items() if self.allow.search(key))
        copy_versions(weights, expected)
        name = checkpoint_path(runner) or f'of {runner.work_dir}'
        new, unused = _differing(initial, stripped), _differing(stripped, initial)
        try:
            model.load_state_dict(expected)
        except RuntimeError as error:
            # Without what modules convert, such as shapes, and so loads.
            refused = {key: part for key, part in {**new, **unused}.items() if key in str(error)}
            patterns = [f'^{re.escape(part)}' for part in dict.fromkeys(refused.values())]
            raise RuntimeError(
                f'The checkpoint {name} does not fit the model. {error}\nTo start these modules anew, and to leave out '
                f'what only the checkpoint has: default_hooks.checkpoint_keys.allow={patterns}'
            ) from None
        for text, differing in ('starts anew', new), ('is not used', unused):
            parts = {part for key, part in differing.items() if self.allow.search(key)}
            if parts:
                print_log(f'Of the model and the checkpoint {name}, this {text}: {", ".join(sorted(parts))}', 'current')


def _differing(weights: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> dict[str, str]:
    """Map the keys that ``others`` lacks, or has in another shape, to the largest module of which it has nothing.

    Without such a module, a key is mapped to itself. Counters of batch norms are left out.
    """
    modules = {module for key in others for module in _containing(key)}
    return {
        key: next((module for module in _containing(key) if module not in modules), key)
        for key, value in weights.items()
        if not key.endswith('.num_batches_tracked') and (key not in others or others[key].shape != value.shape)
    }


def _containing(key: str) -> Iterable[str]:
    parts = key.split('.')
    return ('.'.join(parts[:count]) + '.' for count in range(1, len(parts)))
