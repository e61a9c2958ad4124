"""Segmentation networks as files: ONNX for any runtime, and ``torch.export`` with the native operators.

Only exporting (``exporter.py``, ``metadata.py``, ``network.py``) requires mmseg, not loading a ``torch.export`` file.
"""

from .pt2 import load_pt2

__all__ = ['load_pt2']
