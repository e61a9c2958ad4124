"""Segmentation networks as files: ONNX for any runtime, and ``torch.export`` with the native operators."""

from .exporter import MIN_SIDE, check_requirements, export_network, load_pt2, write_onnx, write_pt2
from .metadata import describe_network
from .network import LogitsNetwork, load_segmentor
from .verification import Run, compare, run_onnx, run_torch

__all__ = [
    'MIN_SIDE',
    'LogitsNetwork',
    'Run',
    'check_requirements',
    'compare',
    'describe_network',
    'export_network',
    'load_pt2',
    'load_segmentor',
    'run_onnx',
    'run_torch',
    'write_onnx',
    'write_pt2',
]
