"""Small clips in the layouts of the data sets, and videos."""

import gc
import struct

import cv2
import torch

from mmattn.video.datasets import VideoFolderDataset
from mmattn.video.loading import LoadGivenMasks, PackClip

from ..requirements import real_data
from ..support.releases import CLIP_SIZE as SIZE  # noqa: F401
from ..support.releases import clip, davis, frame, squares, youtube_vos  # noqa: F401

DAVIS = real_data('davis_240p')
TEST = [LoadGivenMasks(), PackClip()]
# Of the clip ``root``: its length, and the frame where object 9 begins.
LENGTH, LATE = 24, 20


def write_video(path, images, rate=12.5, codec='mp4v'):
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*codec), rate, images[0].shape[1::-1])
    for image in images:
        writer.write(image)
    writer.release()
    return path


def video_frames(path):
    """The frames of a video, and how many it shows per second."""
    video = cv2.VideoCapture(str(path))
    frames = []
    while (found := video.read())[0]:
        frames.append(found[1])
    return frames, video.get(cv2.CAP_PROP_FPS)


def write_matroska(path, images, announced):
    """A video whose duration is that of ``announced`` frames."""
    write_video(path, images, codec='MJPG')
    data = path.read_bytes()
    at = data.index(b'\x44\x89\x88') + 3  # the element Duration, of 8 bytes
    path.write_bytes(data[:at] + struct.pack('>d', announced / 12.5 * 1000) + data[at + 8 :])
    return path


def tensor_bytes():
    """Of all tensors; those that other tests leave behind are collected before.

    torch keeps the tensors by which it has traced an autograd function. They have symbolic sizes, and no memory.
    """
    gc.collect()
    tensors = (x for x in gc.get_objects() if type(x) in (torch.Tensor, torch.nn.Parameter))
    return sum(x.nbytes for x in tensors if not x._has_symbolic_sizes_strides)


def packed(root):
    """The first clip of a folder, as it is given to a model in a test."""
    return VideoFolderDataset(data_root=str(root), pipeline=TEST)[0]['data_samples']
