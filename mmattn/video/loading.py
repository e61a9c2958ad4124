"""From a clip's file lists to what a model takes: frames sampled, frames and masks loaded, packed."""

from itertools import pairwise

import numpy as np
import torch
from mmcv.transforms import BaseTransform
from mmengine.structures import BaseDataElement, PixelData

from mmattn.registry import TRANSFORMS

from .clip_files import ClipFrames, read_frame
from .masks import keep_objects, object_ids, read_mask

META_KEYS = (
    'clip',
    'frame_paths',
    'mask_paths',
    'frame_numbers',
    'first_frames',
    'ori_shape',
    'output_positions',
    'single_object',
    'categories',
    'sample_idx',
)


@TRANSFORMS.register_module()
class SampleClip(BaseTransform):
    """Choose the frames of a training clip: a reference frame, and one of each of equal segments of what follows.

    This is the sampling of temporal segment networks with the reference added. Frames without a mask are left out; a
    clip too short gives frames more than once. ``frame_paths``, ``mask_paths`` and ``frame_numbers`` become those of
    the chosen frames, the reference first, the others in their order.

    Args:
        num_frames (int): at least 1, the reference included.
        reference (str): 'first', the clip's first mask with an object, or 'random', any mask with an object,
            preferably one that leaves enough frames behind it. Defaults to 'first'.

    Raises:
        ValueError: an argument is wrong; when called: no mask of the clip shows an object.
    """

    def __init__(self, num_frames: int, reference: str = 'first') -> None:
        if num_frames < 1:
            raise ValueError(f'num_frames must be at least 1; got {num_frames}')
        if reference not in ('first', 'random'):
            raise ValueError(f"reference must be 'first' or 'random'; got {reference!r}")
        self.num_frames = num_frames
        self.reference = reference

    def transform(self, results: dict) -> dict:
        """Cut ``results`` down to the chosen frames."""
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
        return results


@TRANSFORMS.register_module()
class LoadClipFrames(BaseTransform):
    """Load ``frames``, a list of uint8 ``(H, W, 3)``, BGR, from ``frame_paths``, and set ``ori_shape``, ``(H, W)``.

    Raises:
        FileNotFoundError, ValueError: a frame cannot be read; the message names it.
    """

    def transform(self, results: dict) -> dict:
        """Add the frames."""
        results['frames'] = [read_frame(path) for path in results['frame_paths']]
        results['ori_shape'] = results['frames'][0].shape[:2]
        return results


@TRANSFORMS.register_module()
class LoadClipMasks(BaseTransform):
    """Load ``masks``, a list of uint8 ``(H, W)``, from ``mask_paths``, all of which there must be.

    They show the objects that the first of them, the reference, shows; others are background.

    Args:
        max_objects (int, optional): where there are more, so many are chosen at random. Defaults to None: all.

    Raises:
        FileNotFoundError, ValueError: a mask cannot be read; the message names it.
    """

    def __init__(self, max_objects: int | None = None) -> None:
        self.max_objects = max_objects

    def transform(self, results: dict) -> dict:
        """Add the masks."""
        masks = [read_mask(path, results['single_object']) for path in results['mask_paths']]
        ids = object_ids(masks[0])
        if self.max_objects is not None and len(ids) > self.max_objects:
            ids = np.random.choice(ids, self.max_objects, replace=False).tolist()
        results['masks'] = [keep_objects(mask, ids) for mask in masks]
        return results


@TRANSFORMS.register_module()
class LoadGivenMasks(BaseTransform):
    """Load what a test clip comes with: each object's mask at the first of ``given_positions`` that shows it.

    Adds ``given``, a dict from positions to uint8 ``(H, W)`` masks of the objects that begin there, nothing else;
    ``first_frames``, a dict from ids to the positions where they begin, by ascending id; ``ori_shape``, ``(H, W)``.

    Raises:
        FileNotFoundError, ValueError: a mask cannot be read, or none shows an object.
    """

    def transform(self, results: dict) -> dict:
        """Add the masks."""
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
    """Pack a clip for a model.

    The item is a dict of

    * ``inputs``, if frames are loaded: uint8 ``(T, 3, H, W)``, BGR;
    * ``data_samples``: a ``BaseDataElement`` with

      * ``given``: a dict from positions in the clip to uint8 ``(H, W)`` tensors with the ids of the objects that begin
        there, and 0; in training ``{0: …}``;
      * ``frames``, of a whole clip, as in a test: :class:`~mmattn.video.clip_files.ClipFrames`, a sequence that reads a
        frame when it is taken;
      * ``gt_masks``, if all masks are loaded, as in training: ``PixelData`` whose ``data``, uint8 ``(T, H, W)``, are
        ids, 0, and 255 for pixels that do not count, which lie beyond the image; the objects are those of ``given``;
      * meta information: ``first_frames`` (dict: ids, ascending, to the positions where the objects begin),
        ``ori_shape`` (``(H, W)`` of the files), and the data set's ``clip``, ``frame_paths``, ``mask_paths``,
        ``frame_numbers``, ``output_positions``, ``single_object``, ``categories`` and ``sample_idx``.

    Training clips without an object left in their reference frame are rejected, that is None.
    """

    def transform(self, results: dict) -> dict | None:
        """Return the item."""
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
