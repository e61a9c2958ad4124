"""Loading mmengine's checkpoints with torch ≥ 2.6, which unpickles only the types that it was told are safe."""

import numpy as np
import torch
from mmengine.logging import HistoryBuffer


def add_safe_globals() -> None:
    """Tell torch what mmengine's checkpoints hold beside tensors.

    The original mmengine does not, and cannot load what it saved itself. The list is that of the continued mmengine's
    ``get_torch_safe_globals`` with all numbers of NumPy: it leaves out float32, the type of mmseg's best mIoU.
    """
    multiarray = (np._core if hasattr(np, '_core') else np.core).multiarray
    numbers = {type(np.dtype(code)) for code in np.typecodes['AllInteger'] + np.typecodes['AllFloat']}
    torch.serialization.add_safe_globals(
        [HistoryBuffer, slice, getattr, multiarray._reconstruct, multiarray.scalar, np.ndarray, np.dtype, *numbers]
    )
