"""The model within wrappers of distributed training."""

from typing import Any

from mmengine.model import is_model_wrapper


def unwrapped(model: Any) -> Any:
    """Get the model within a wrapper of distributed training, or the model itself."""
    while is_model_wrapper(model):
        model = model.module
    return model
