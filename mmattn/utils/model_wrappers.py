"""The model within wrappers of distributed training and of test-time augmentation."""

from typing import Any

from mmengine.model import BaseTTAModel, is_model_wrapper


def unwrapped(model: Any) -> Any:
    """Get the model within wrappers of distributed training and of test-time augmentation, or the model itself."""
    while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
        model = model.module
    return model
