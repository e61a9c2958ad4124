"""Loading mmengine's checkpoints with torch ≥ 2.6, which unpickles only the types that it was told are safe."""

from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer


def add_safe_globals() -> None:
    """Tell torch what mmengine's checkpoints hold beside tensors.

    The original mmengine does not, and cannot load what it saved itself. The list is that of the continued mmengine's
    ``get_torch_safe_globals`` with all numbers of NumPy: it leaves out float32, the type of mmseg's best mIoU.
    """
    # The functions that make arrays and numbers of a pickle; where they are depends on NumPy's version.
    pickled_by: list[Any] = [np.zeros(0).__reduce__()[0], np.float64().__reduce__()[0]]
    numbers = {type(np.dtype(code)) for code in np.typecodes['AllInteger'] + np.typecodes['AllFloat']}
    torch.serialization.add_safe_globals([HistoryBuffer, slice, getattr, *pickled_by, np.ndarray, np.dtype, *numbers])
