"""Small clips in the layouts of the data sets."""

import pytest

from mmattn.video.datasets import VideoFolderDataset
from mmattn.video.loading import LoadGivenMasks, PackClip
from reproduction.releases import CLIP_SIZE as SIZE  # noqa: F401
from reproduction.releases import clip, davis, frame, squares, youtube_vos  # noqa: F401

from ..real_data import missing, real_data

DAVIS = real_data('davis_240p', 'davis')
needs_davis = pytest.mark.skipif(not DAVIS.is_dir(), reason=missing('davis_240p', DAVIS))
TEST = [LoadGivenMasks(), PackClip()]


def packed(root):
    """The first clip of a folder, as it is given to a model in a test."""
    return VideoFolderDataset(data_root=str(root), pipeline=TEST)[0]['data_samples']
