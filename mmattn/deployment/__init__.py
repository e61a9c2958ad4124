"""Segmentation networks as files: ONNX for any runtime, and ``torch.export`` with the native operators.

Exporting requires mmseg (``exporter.py``, ``metadata.py``, ``network.py``); loading a file of ``torch.export`` not.
"""

from .pt2 import load_pt2

__all__ = ['load_pt2']
