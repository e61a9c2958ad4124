"""Follow objects through a clip whose frames arrive one by one, in memory that does not grow with the clip.

A session is the only loop over the frames of a clip, for the test of a data set and for the inferencer. It knows a
model by three functions, :class:`ClipNetwork`, and never calls its ``forward``.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, product
from math import inf
from typing import Any, NamedTuple, Protocol

import mmcv
import numpy as np
import torch
from mmengine.structures import BaseDataElement, PixelData
from torch import Tensor, nn
from torch.nn import functional as F

from mmattn.utils.checks import check_choice

from .aggregation import aggregate
from .expand_mask_project import shrink_masks
from .frame_files import regular_step
from .masks import VOID, object_ids, to_ids

SAMPLINGS = ('dense', 'sparse')
REFERENCES = ('last', 'nearest', 'all')
Votes = dict[int, list[tuple[float, Tensor]]]  # of a frame, by object: its streams and their weights
FRAMES_AT_ONCE = 4  # batch size of the backbone on a GPU; it processes frames separately, on a CPU one by one: faster


class ClipNetwork(Protocol):
    """What a session requires of a model. :class:`~mmattn.video.SST` and ``LabelPropagation`` have it.

    B clips of T frames have features of h × w cells with C channels, and O objects in all clips together.
    """

    aggregation: str  # as in `aggregate`
    data_preprocessor: Any  # with `normalize` and `pad_size_divisor`, as ClipDataPreprocessor
    uses_previous: bool  # if so, frames arrive one by one, and `object_streams` has the argument `previous`

    def extract_feat(self, frames: Tensor) -> tuple[Tensor, Tensor | None]:
        """Extract ``(N, h, w, C)``, and finer maps ``(N, C', h', w')`` or None, from ``(N, 3, H, W)``."""

    def object_streams(
        self, features: Tensor, frame_numbers: Tensor, reference: Tensor, masks: Tensor, clip: Tensor
    ) -> Tensor:
        """Follow objects through clips: ``(O, T, h, w, C')``.

        Args:
            features (Tensor): ``(B, T, h, w, C)``, from ``extract_feat``.
            frame_numbers (Tensor): int64 ``(B, T)``, counted from the reference frame.
            reference (Tensor): ``(O, h, w, C)``, features of each object's reference frame.
            masks (Tensor): float ``(O, h, w)``, each object's mask in its reference frame, see :func:`shrink_masks`.
            clip (Tensor): int64 ``(O)``, index of each object's clip, 0 to B − 1.

        With ``uses_previous``, there is also ``previous`` (Tensor), float ``(O, h, w)``, each object's mask in the
        frame before the only one that follows the reference frame. It is 0 for objects without one.
        """

    def head(self, stream: Tensor, fine: Tensor | None, size: Sequence[int]) -> Tensor:
        """Compute logits of background and foreground ``(N, 2, *size)`` of an object's stream ``(N, h, w, C')``."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters, which are on the device of the session."""


class Frame(NamedTuple):
    """A frame of a clip.

    Attributes:
        number (int): position in the clip. Numbers may have steps of any size, and gaps.
        image (np.ndarray): uint8 ``(H, W, 3)``, BGR. You may reuse the buffer for the next frame.
        mask (np.ndarray, optional): ``(H, W)`` of any integer type. Objects 1…254 begin here, or are corrected, 0 is
            background.
    """

    number: int
    image: np.ndarray
    mask: np.ndarray | None = None


class _Reference(NamedTuple):
    features: Tensor  # (h, w, C)
    ids: list[int]  # of the O objects in the mask
    masks: Tensor  # float (O, h, w)
    mask: np.ndarray  # (H, W) of the ids


def reference_weights(numbers: Iterable[int], number: int, references: str) -> dict[int, float]:
    """Weigh the masks of an object for a frame.

    Args:
        numbers (iterable of int): frame numbers of the object's masks.
        number (int): of the frame.
        references (str): as in :class:`ClipSession`.

    Returns:
        dict[int, float]: weights by frame number, which sum to 1. Empty if the frame has a mask, or none counts in it.

    Example:
        >>> [reference_weights([0, 20], 15, references) for references in ('last', 'nearest', 'all')]
        [{0: 1.0}, {20: 1.0}, {0: 0.25, 20: 0.75}]
    """
    distances = {reference: abs(number - reference) for reference in numbers}
    if references == 'last':
        distances = {reference: distance for reference, distance in distances.items() if reference <= number}
    if not distances or number in distances:
        return {}
    if references != 'all':
        return {min(distances, key=lambda reference: (distances[reference], reference)): 1.0}
    total = sum(1 / distance for distance in distances.values())
    return {reference: 1 / distance / total for reference, distance in distances.items()}


class ClipSession:
    """Follow objects through one clip.

    Objects may begin at any frame, and a later mask of an object corrects it. Where an object has a mask, the mask is
    its prediction. For the objects of each reference frame, the model receives this frame and the later ones, whose
    numbers count from it, and, except with 'last', the earlier ones in reverse. If a clip is processed in parts, the
    model receives a part together with the reference frame.

    Args:
        model (ClipNetwork): for example an :class:`~mmattn.video.SST`, in eval mode.
        scale, max_frames, sampling: as in ``test_cfg`` of :class:`~mmattn.video.SST`. Only :meth:`segment_clip` uses
            ``sampling``.
        references (str): which masks of an object count in a frame. Defaults to 'last'.

            * 'last': the last one before the frame. An object is absent before its first mask.
            * 'nearest': the nearest one, also a later one.
            * 'all': all, with weights inverse to their distances from the frame.

            :meth:`add` the masks that count in earlier frames before :meth:`segment`.

    Example::

        session = ClipSession(model.eval(), max_frames=16)
        frames = (Frame(i, image, mask if i == 0 else None) for i, image in enumerate(images))
        masks = [ids for _, ids in session.segment(frames)]
    """

    def __init__(
        self,
        model: ClipNetwork,
        scale: tuple[int, int] | None = None,
        max_frames: int | None = None,
        sampling: str = 'dense',
        references: str = 'last',
    ) -> None:
        check_choice('references', references, REFERENCES)
        if max_frames is not None and max_frames < 2:
            raise ValueError(f'max_frames must be at least 2, a reference frame and another; got {max_frames}')
        self.model = model
        self.scale = scale
        self.max_frames = max_frames
        self.sampling = sampling
        self.references = references
        self._references: dict[int, _Reference] = {}
        self._previous: tuple[int, np.ndarray] | None = None  # number and ids (H, W) of the frame before
        self._step = inf  # regular, between the numbers of successive frames
        self._size: tuple[int, ...] | None = None

    def __contains__(self, number: int) -> bool:
        """Tell whether the frame of this number is a reference."""
        return number in self._references

    @torch.no_grad()
    def segment(
        self,
        frames: Iterable[Frame],
        known: Callable[[list[int]], list[np.ndarray] | None] = lambda numbers: None,
        step: int | None = None,
    ) -> Iterator[tuple[Frame, np.ndarray]]:
        """Yield each frame with its ids, uint8 ``(H, W)``. Frames are processed in parts of at most ``max_frames``.

        You may change the ids, for example to show them. No more frames are held than those of a part.

        Args:
            frames (iterable of Frame): in the order of their numbers, and all of one size.
            known (Callable): receives the frame numbers of a part, and returns its ids if an earlier run computed them,
                or None. It does not change where parts begin. Defaults to None for all parts.
            step (int, optional): regular step between the numbers of successive frames. A larger one is a gap, after
                which an object may be anywhere. Defaults to None, the smallest one so far.
        """
        self._step = step or self._step
        for part in self._consecutive(frames):
            ids = known([frame.number for frame in part])
            if ids is not None:
                for frame, of_frame in zip(part, ids):
                    self._remember(frame.number, of_frame)
            yield from self._segment_part(part) if ids is None else zip(part, ids)
            part.clear()  # before the next one is read

    @torch.no_grad()
    def segment_clip(self, sample: BaseDataElement) -> np.ndarray:
        """Segment a whole clip, as made by ``PackClip``: ids, uint8 ``(T, H, W)``.

        No more frames are held than those of a part, and the next ones, which are decoded meanwhile. A frame that
        cannot be read, or has another size than the masks, raises an error that names its file.
        """
        count = len(sample.frames)
        ids = np.zeros((count, *sample.ori_shape), np.uint8)
        position = {number: i for i, number in enumerate(sample.frame_numbers)}
        self._step = regular_step(sample.frame_numbers) or self._step
        if self.sampling == 'sparse' and self.max_frames is not None and count > self.max_frames:
            parts = self._from_whole_clip(sample, self.max_frames)
        else:
            parts = self._consecutive(_frames(sample, range(count)))
        for part in parts:
            for frame, frame_ids in self._segment_part(part):
                ids[position[frame.number]] = frame_ids
            part.clear()  # before the next one is read
        return ids

    def _consecutive(self, frames: Iterable[Frame]) -> Iterator[list[Frame]]:
        """Cut a clip into parts, and add the references in it on the way.

        With 'last', those that count in no later frame are dropped behind their part.
        """
        part: list[Frame] = []
        last = None
        on_the_way: set[int] = set()  # others were added by the caller, who may go through the clip again
        for frame in frames:
            _check_frame(frame)
            if last is not None and frame.number <= last:
                raise ValueError(f'frames must be in the order of their numbers; got {frame.number} after {last}')
            last = frame.number
            if frame.mask is not None:
                self.add(frame)
                on_the_way.add(frame.number)
            part.append(frame._replace(image=frame.image.copy()))  # the caller may reuse the buffer
            outside = bool(self._references.keys() - {frame.number for frame in part})
            if self.max_frames is not None and len(part) + outside >= self.max_frames:
                yield part
                part = []
                if self.references == 'last':
                    kept = {i: x for x in sorted(self._references) if x <= last for i in self._references[x].ids}
                    for number in on_the_way.difference(kept.values()):
                        del self._references[number]
                    on_the_way &= {*kept.values()}
        if part:
            yield part

    def _from_whole_clip(self, sample: BaseDataElement, max_frames: int) -> Iterator[list[Frame]]:
        """Add all references of a clip, then put every n-th frame into a part, for n parts."""
        for frame in _frames(sample, sample.given):
            self.add(frame)
        count = len(sample.frames)
        parts = -(-count // (max_frames - 1))  # a reference comes with each part
        positions = [range(start, count, parts) for start in range(parts)]
        frames = _frames(sample, chain(*positions))
        for part in positions:
            yield [*islice(frames, len(part))]

    @torch.no_grad()
    def add(self, frame: Frame) -> None:
        """Register a frame as a reference of the objects in its mask, of which there must be at least one.

        A second mask of the same frame replaces the first one.
        """
        _check_frame(frame)
        mask = (
            np.zeros((1, 1), np.uint8)
            if frame.mask is None
            else to_ids(frame.mask, f'the mask of frame {frame.number}')
        )
        ids = object_ids(mask)
        if not ids:
            hint = f'; {VOID} is void: number the objects from 1' if mask.any() else ''
            raise ValueError(f'the mask of frame {frame.number} shows no object{hint}')
        if mask.shape != frame.image.shape[:2]:
            raise ValueError(
                f'the mask of frame {frame.number} is of shape {mask.shape}, the frame of {frame.image.shape[:2]}'
            )
        features, _, _ = self._features([frame])
        masks = self._shrink(frame, mask, ids, features[0])
        self._references[frame.number] = _Reference(features[0], ids, masks, mask)

    def _shrink(self, frame: Frame, mask: np.ndarray, ids: list[int], features: Tensor) -> Tensor:
        """Average the objects of an index mask over the cells of a feature map ``(h, w, C)``: ``(O, h, w)``."""
        height, width = self.resize(frame.image).shape[:2]
        shares = torch.from_numpy(np.stack([mask == i for i in ids])).float()
        shares = F.interpolate(shares[None], (height, width), mode='area')[0]
        pad = self.model.data_preprocessor.pad_size_divisor
        shares = F.pad(shares, (0, -width % pad, 0, -height % pad))
        return shrink_masks(shares.to(features.device), features.shape[:2])

    def _segment_part(self, part: list[Frame]) -> Iterator[tuple[Frame, np.ndarray]]:
        part = sorted(part, key=lambda frame: frame.number)
        features, fine, size = self._features(part)  # (T, h, w, C), (T, 1, C', H/4, W/4) or None
        weights = self._weights([frame.number for frame in part])
        at_once = 1 if self.model.uses_previous else len(part)
        for start in range(0, len(part), at_once):
            block = slice(start, start + at_once)
            of_block = {i: frames[block] for i, frames in weights.items()}
            votes = self._votes(part[block], features[block], of_block)
            for at, frame in enumerate(part[block], start):
                labels = self._labels(frame, votes[at - start], None if fine is None else fine[at], size)
                self._remember(frame.number, labels)
                yield frame, labels

    def _remember(self, number: int, ids: np.ndarray) -> None:
        """Keep the ids of a frame for the next one, and the smallest step so far."""
        if self._previous is not None and number > self._previous[0]:
            self._step = min(self._step, number - self._previous[0])
        self._previous = number, ids.copy()  # the caller may change them

    def _votes(self, part: list[Frame], features: Tensor, weights: dict[int, list[dict[int, float]]]) -> list[Votes]:
        """Follow all objects through frames, from each of their references."""
        votes: list[Votes] = [defaultdict(list) for _ in part]
        for number, reference in self._references.items():
            earlier = [at for at, frame in enumerate(part) if frame.number < number]
            later = [at for at, frame in enumerate(part) if frame.number > number]
            for side in (earlier[::-1], later):
                ids = [i for i in reference.ids if any(number in weights[i][at] for at in side)]
                if not ids:
                    continue
                distances = [abs(part[at].number - number) for at in side]
                previous = self._previous_masks(part[0], ids, reference.features)
                streams = self._follow(reference, ids, distances, features[side], **previous)
                for (i, of_object), (n, at) in product(zip(ids, streams), enumerate(side)):
                    if number in weights[i][at]:
                        votes[at][i].append((weights[i][at][number], of_object[n]))
        return votes

    def _previous_masks(self, frame: Frame, ids: list[int], features: Tensor) -> dict[str, Tensor]:
        if not self.model.uses_previous:
            return {}
        # after a gap, an object may have gone anywhere
        if self._previous is None or not 0 < frame.number - self._previous[0] <= self._step:
            return dict(previous=torch.zeros(len(ids), *features.shape[:2], device=features.device))
        return dict(previous=self._shrink(frame, self._previous[1], ids, features))

    def _weights(self, numbers: list[int]) -> dict[int, list[dict[int, float]]]:
        """Weigh the references of each object, by id, for frames: see :func:`reference_weights`."""
        masks = defaultdict(list)
        for number, reference in self._references.items():
            for i in reference.ids:
                masks[i].append(number)
        return {i: [reference_weights(masks[i], number, self.references) for number in numbers] for i in masks}

    def _follow(
        self, reference: _Reference, ids: list[int], distances: list[int], features: Tensor, **previous: Tensor
    ) -> Tensor:
        """Follow objects of a reference frame through other frames, as in training: it comes first, as frame 0."""
        return self.model.object_streams(
            torch.cat([reference.features[None], features]).unsqueeze(0),  # (1, 1 + T, h, w, C)
            torch.tensor([[0, *distances]], device=features.device),  # (1, 1 + T)
            reference.features.expand(len(ids), -1, -1, -1),  # (O, h, w, C)
            reference.masks[[reference.ids.index(i) for i in ids]],  # (O, h, w)
            torch.zeros(len(ids), dtype=torch.long, device=features.device),  # (O)
            **previous,
        )[:, 1:]  # (O, T, h, w, C)

    def _labels(self, frame: Frame, votes: Votes, fine: Tensor | None, size: tuple[int, int]) -> np.ndarray:
        shape = frame.image.shape[:2]
        labels = np.zeros(shape, np.uint8)
        if votes:
            ids = sorted(votes)
            height, width = self.resize(frame.image).shape[:2]  # without padding

            def probability(stream: Tensor) -> Tensor:
                logits = self.model.head(stream[None], fine, size)[:, :, :height, :width].float()
                return F.interpolate(logits, shape, mode='bilinear', align_corners=False).softmax(1)[0, 1]

            # (O, H, W)
            foreground = torch.stack([sum(weight * probability(x) for weight, x in votes[i]) for i in ids])  # type: ignore[misc]
            maps = aggregate(foreground, self.model.aggregation)
            if maps.device.type != 'cpu':
                labels = np.array([0, *ids], np.uint8)[maps.argmax(0).cpu().numpy()]
            else:
                largest, *shares = maps.numpy()
                for i, share in zip(ids, shares):  # in place of argmax over the first axis, which is slow on a CPU
                    labels[share > largest] = i
                    largest = np.maximum(share, largest)
        if frame.number in self._references:
            reference = self._references[frame.number]
            labels = np.where(np.isin(reference.mask, reference.ids), reference.mask, labels)
        return labels

    def _features(self, frames: list[Frame]) -> tuple[Tensor, Tensor | None, tuple[int, int]]:
        for frame in frames:
            if self._size is not None and frame.image.shape != self._size:
                raise ValueError(
                    f'frame {frame.number} is of shape {frame.image.shape[:2]}, earlier frames of {self._size[:2]}'
                )
            self._size = frame.image.shape
        outputs = []
        device = next(self.model.parameters()).device
        at_once = 1 if device.type == 'cpu' else FRAMES_AT_ONCE
        for start in range(0, len(frames), at_once):
            images = np.stack([self.resize(frame.image) for frame in frames[start : start + at_once]])
            images = self.model.data_preprocessor.normalize(torch.from_numpy(images).permute(0, 3, 1, 2).to(device))
            outputs.append(self.model.extract_feat(images))
        features, fine = zip(*outputs)
        return torch.cat(features), None if fine[0] is None else torch.cat(fine)[:, None], tuple(images.shape[2:])

    def resize(self, image: np.ndarray) -> np.ndarray:
        """Resize a frame to ``scale``, as ``ClipResize`` does."""
        if self.scale is None:
            return image
        return mmcv.imresize(image, mmcv.rescale_size(image.shape[1::-1], self.scale))  # as ClipResize


def _check_frame(frame: Any) -> None:
    if not isinstance(frame, Frame):
        raise ValueError(f'frames must be of type Frame(number, image, mask); got {type(frame).__name__}')
    image: Any = frame.image
    if not (isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3):
        kind = f'{image.dtype} of shape {image.shape}' if isinstance(image, np.ndarray) else type(image).__name__
        raise ValueError(f'the image of frame {frame.number} must be uint8 of shape (H, W, 3), BGR; got {kind}')


def _frames(sample: BaseDataElement, positions: Iterable[int]) -> Iterator[Frame]:
    positions = list(positions)
    for position, image in zip(positions, sample.frames.read(positions)):
        mask = sample.given[position].cpu().numpy() if position in sample.given else None
        yield Frame(sample.frame_numbers[position], image, mask)


@torch.no_grad()
def segment_clips(model: ClipNetwork, settings: dict, samples: list[BaseDataElement]) -> list[BaseDataElement]:
    """Add ``pred_masks`` to samples of whole clips: ``data``, the predicted ids, uint8 ``(T, H, W)``.

    mmengine's loops know a test as ``model.test_step``, so the models that they call enter here.

    Args:
        model (ClipNetwork): in eval mode.
        settings (dict): of :class:`ClipSession`.
        samples (list of BaseDataElement): whole clips, as made by ``PackClip``.
    """
    for sample in samples:
        session = ClipSession(model, **settings)
        sample.pred_masks = PixelData(data=torch.from_numpy(session.segment_clip(sample)))
    return samples


def check_settings(test_cfg: dict) -> dict:
    """Check and copy the settings of a session."""
    unknown = set(test_cfg) - {'scale', 'max_frames', 'sampling'}
    if unknown:
        raise ValueError(f'the keys of test_cfg must be scale, max_frames and sampling; got {sorted(unknown)}')
    check_choice('test_cfg.sampling', test_cfg.get('sampling', 'dense'), SAMPLINGS)
    frames, scale = test_cfg.get('max_frames'), test_cfg.get('scale')
    if frames is not None and not (isinstance(frames, int) and frames >= 2):
        raise ValueError(
            f'test_cfg.max_frames must be an integer, at least 2: a reference frame and another; got {frames}'
        )
    if scale is None:
        return dict(test_cfg)
    if not (isinstance(scale, Sequence) and len(scale) == 2 and all(isinstance(x, int) and x > 0 for x in scale)):
        raise ValueError(f'test_cfg.scale must be a width and a height, both positive integers; got {scale!r}')
    return dict(test_cfg, scale=tuple(scale))
