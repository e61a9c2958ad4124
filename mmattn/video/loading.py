"""Transforms that turn the file lists of a clip into model inputs: sample frames, load frames and masks, pack them.

A file that cannot be read, and a clip whose masks show no object, raise an error that names the file or the clip.
"""

from itertools import pairwise

import numpy as np
import torch
from mmcv.transforms import BaseTransform
from mmengine.structures import BaseDataElement, PixelData

from mmattn.registry import TRANSFORMS
from mmattn.utils.checks import check_choice, check_count

from .clip_readers import ClipFrames
from .frame_files import read_frame
from .masks import keep_objects, object_ids, read_mask

META_KEYS = (
    'clip',
    'frame_paths',
    'mask_paths',
    'frame_numbers',
    'first_frames',
    'ori_shape',
    'output_positions',
    'unscored_positions',
    'single_object',
    'categories',
    'sample_idx',
)


@TRANSFORMS.register_module()
class SampleClip(BaseTransform):
    """Choose the frames of a training clip: a reference frame, and one frame from each of several equal later segments.

    This is the sampling of temporal segment networks plus a reference frame. Frames without a mask are not chosen. If a
    clip is too short, frames are repeated. ``frame_paths``, ``mask_paths`` and ``frame_numbers`` then hold the
    reference frame and, in order, the later frames. The numbers count from the reference frame, because a temporal
    encoding tells the distance to it (section 5.4 of the thesis).

    Args:
        num_frames (int): number of frames, including the reference, at least 1.
        reference (str): 'first', the first mask with an object, or 'random', any mask with an object, preferably one
            that is followed by enough frames. Defaults to 'first'.

    Example:
        >>> sample = TRANSFORMS.build(dict(type='mmattn.SampleClip', num_frames=4, reference='random'))
        >>> sample.num_frames
        4
    """

    def __init__(self, num_frames: int, reference: str = 'first') -> None:
        check_count('num_frames', num_frames)
        check_choice('reference', reference, ('first', 'random'))
        self.num_frames = num_frames
        self.reference = reference

    def transform(self, results: dict) -> dict:
        """Reduce ``results`` to the chosen frames."""
        masked = [i for i, path in enumerate(results['mask_paths']) if path]
        start = 0
        if self.reference == 'random':
            start = np.random.randint(max(1, len(masked) - self.num_frames + 1))
        for i in (*range(start, len(masked)), *range(start)):
            if object_ids(read_mask(results['mask_paths'][masked[i]], results['single_object'])):
                break
        else:
            raise ValueError(f'{results["clip"]}: no mask shows an object')
        rest, segments = masked[i + 1 :] or masked[i : i + 1], self.num_frames - 1
        bounds = np.arange(segments + 1) * len(rest) // max(1, segments)
        chosen = [rest[np.random.randint(low, max(low + 1, high))] for low, high in pairwise(bounds)]
        for key in ('frame_paths', 'mask_paths', 'frame_numbers'):
            results[key] = [results[key][position] for position in (masked[i], *chosen)]
        reference = results['frame_numbers'][0]
        results['frame_numbers'] = [number - reference for number in results['frame_numbers']]
        return results


@TRANSFORMS.register_module()
class LoadClipFrames(BaseTransform):
    """Load ``frames``, a list of uint8 ``(H, W, 3)``, BGR, from ``frame_paths``, and set ``ori_shape``, ``(H, W)``.

    Example:
        >>> from PIL import Image
        >>> Image.new('RGB', (44, 30)).save('0.png')
        >>> LoadClipFrames()(dict(frame_paths=['0.png']))['ori_shape']
        (30, 44)
    """

    def transform(self, results: dict) -> dict:
        """Add ``frames`` and ``ori_shape``."""
        results['frames'] = [read_frame(path) for path in results['frame_paths']]
        results['ori_shape'] = results['frames'][0].shape[:2]
        return results


@TRANSFORMS.register_module()
class LoadClipMasks(BaseTransform):
    """Load ``masks``, a list of uint8 ``(H, W)``, from ``mask_paths``. Every frame must have a mask.

    Objects that the first mask, the reference, does not show become background.

    Args:
        max_objects (int, optional): keep at most so many objects, chosen at random. Defaults to None, all.

    Example:
        >>> from mmattn.video import write_mask
        >>> write_mask('0.png', np.array([[0, 1]]))
        >>> write_mask('1.png', np.array([[1, 2]]))
        >>> LoadClipMasks()(dict(mask_paths=['0.png', '1.png'], single_object=False))['masks']
        [array([[0, 1]], dtype=uint8), array([[1, 0]], dtype=uint8)]
    """

    def __init__(self, max_objects: int | None = None) -> None:
        self.max_objects = max_objects

    def transform(self, results: dict) -> dict:
        """Add ``masks``."""
        masks = [read_mask(path, results['single_object']) for path in results['mask_paths']]
        ids = object_ids(masks[0])
        if self.max_objects is not None and len(ids) > self.max_objects:
            ids = np.random.choice(ids, self.max_objects, replace=False).tolist()
        results['masks'] = [keep_objects(mask, ids) for mask in masks]
        return results


@TRANSFORMS.register_module()
class LoadGivenMasks(BaseTransform):
    """Load the masks that are given in a test: an object's mask at the first of ``given_positions`` that shows it.

    This adds ``ori_shape``, ``(H, W)``, and two dicts. ``given`` maps positions to uint8 ``(H, W)`` masks of the
    objects that begin there. ``first_frames`` maps ascending ids to the positions at which the objects begin.

    Example:
        >>> from mmattn.video import write_mask
        >>> write_mask('0.png', np.array([[0, 1]]))
        >>> clip = dict(clip='cat', mask_paths=['0.png', None], given_positions=[0], single_object=False)
        >>> LoadGivenMasks()(clip)['first_frames']
        {1: 0}
    """

    def transform(self, results: dict) -> dict:
        """Add ``given``, ``first_frames`` and ``ori_shape``."""
        first_frames: dict[int, int] = {}
        given = {}
        for position in results['given_positions']:
            mask = read_mask(results['mask_paths'][position], results['single_object'])
            new = [i for i in object_ids(mask) if i not in first_frames]
            if new:
                given[position] = keep_objects(mask, new)
                first_frames.update(dict.fromkeys(new, position))
        if not given:
            raise ValueError(f'{results["clip"]}: no mask shows an object')
        results.update(given=given, first_frames=dict(sorted(first_frames.items())), ori_shape=mask.shape)
        return results


@TRANSFORMS.register_module()
class PackClip(BaseTransform):
    """Pack a clip for the model.

    The result is a dict of

    * ``inputs``, if frames are loaded: uint8 ``(T, 3, H, W)``, BGR.
    * ``data_samples``: a ``BaseDataElement`` with

      * ``given``: a dict from positions to uint8 ``(H, W)`` tensors, with the ids of the objects that begin there, and
        0. In training, its only key is 0.
      * ``frames``, in a test: :class:`~mmattn.video.clip_readers.ClipFrames`, a sequence that reads a frame on access.
      * ``gt_masks``, in training: ``PixelData`` whose ``data``, uint8 ``(T, H, W)``, hold the ids of the given objects,
        0, and 255 for ignored pixels outside the image.
      * meta information: ``first_frames`` and ``ori_shape`` as in :class:`LoadGivenMasks`, and the keys of an item of
        :class:`~mmattn.video.VideoFolderDataset`, except ``given_positions``.

    If the reference frame of a training clip shows no object any more, the result is None, and the clip is skipped.

    Example:
        >>> frames, masks = [np.zeros((30, 44, 3), np.uint8)] * 2, [np.eye(30, 44, dtype=np.uint8)] * 2
        >>> item = PackClip()(dict(frames=frames, masks=masks))
        >>> item['inputs'].shape, item['data_samples'].gt_masks.data.shape
        (torch.Size([2, 3, 30, 44]), torch.Size([2, 30, 44]))
    """

    def transform(self, results: dict) -> dict | None:
        """Return the packed clip, or None."""
        masks = results.get('masks')
        sample = BaseDataElement()
        if masks is not None:
            ids = object_ids(masks[0])
            if not ids:
                return None
            masks = torch.from_numpy(np.stack([keep_objects(mask, ids) for mask in masks]))
            sample.gt_masks = PixelData(data=masks)
            results = {**results, 'first_frames': dict.fromkeys(ids, 0)}
            sample.given = {0: torch.where(masks[0] == 255, 0, masks[0])}
        else:
            sample.given = {position: torch.from_numpy(mask) for position, mask in results['given'].items()}
            sample.frames = ClipFrames(results['frame_paths'], results['ori_shape'])
        sample.set_metainfo({key: results[key] for key in META_KEYS if key in results})
        packed = {'data_samples': sample}
        if 'frames' in results:
            frames = np.stack([frame.transpose(2, 0, 1) for frame in results['frames']])
            packed['inputs'] = torch.from_numpy(frames)
        return packed
