"""Segmentation networks as files: ONNX for any runtime, and ``torch.export`` with the native operators.

:func:`load_pt2` loads a file of ``torch.export`` without mmseg. Only exporting (``exporter.py``, ``metadata.py``,
``network.py``) requires it. Imports ``ops``, ``segmentation`` and ``utils``; only tools import it. Start with
``exporter.py``: the network of ``network.py``, written, and compared with the model by ``verification.py``.
"""

from .pt2 import load_pt2

__all__ = ['load_pt2']
