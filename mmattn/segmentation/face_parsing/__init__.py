"""Face parsing: the data sets HELEN and LFW-PL, their metric, and an inferencer."""

from .datasets import HELENDataset, LFWPLDataset
from .inferencer import FaceParsingInferencer
from .metric import FaceParsingMetric

__all__ = ['FaceParsingInferencer', 'FaceParsingMetric', 'HELENDataset', 'LFWPLDataset']
