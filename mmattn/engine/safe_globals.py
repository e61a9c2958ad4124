"""Load mmengine's checkpoints with torch ≥ 2.6, which unpickles only types that are registered as safe."""

from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer


def add_safe_globals() -> None:
    """Register the types in mmengine's checkpoints, other than tensors, as safe.

    The original mmengine does not do this, and cannot load its own checkpoints. The list is that of
    ``get_torch_safe_globals`` in the continued mmengine, plus all number types of NumPy: it lacks float32, the type of
    the best mIoU of mmseg.
    """
    # The functions that unpickle arrays and numbers; their module depends on the version of NumPy.
    pickled_by: list[Any] = [np.zeros(0).__reduce__()[0], np.float64().__reduce__()[0]]
    numbers = {type(np.dtype(code)) for code in np.typecodes['AllInteger'] + np.typecodes['AllFloat']}
    torch.serialization.add_safe_globals([HistoryBuffer, slice, getattr, *pickled_by, np.ndarray, np.dtype, *numbers])
