"""Small clips in the layouts of the data sets."""

from mmattn.video.datasets import VideoFolderDataset
from mmattn.video.loading import LoadGivenMasks, PackClip
from reproduction.releases import CLIP_SIZE as SIZE  # noqa: F401
from reproduction.releases import clip, davis, frame, squares, youtube_vos  # noqa: F401

from ..requirements import real_data

DAVIS = real_data('davis_240p')
TEST = [LoadGivenMasks(), PackClip()]


def packed(root):
    """The first clip of a folder, as it is given to a model in a test."""
    return VideoFolderDataset(data_root=str(root), pipeline=TEST)[0]['data_samples']
