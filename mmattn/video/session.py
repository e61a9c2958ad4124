"""Follow objects through a clip whose frames arrive one by one, in memory that does not grow with the clip."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import mmcv
import numpy as np
import torch
from mmengine.structures import BaseDataElement, PixelData
from torch import Tensor
from torch.nn import functional as F

from .aggregation import aggregate
from .expand_mask_project import shrink_masks
from .masks import VOID, object_ids, to_ids
from .network import SSTNetwork

SAMPLINGS = ('dense', 'sparse')
FRAMES_AT_ONCE = 4  # batch size of the backbone, which processes frames separately


class Frame(NamedTuple):
    """A frame of a clip.

    Attributes:
        number (int): position in the clip, from 0. Numbers may have gaps.
        image (np.ndarray): uint8 ``(H, W, 3)``, BGR. You may reuse the buffer for the next frame.
        mask (np.ndarray, optional): ``(H, W)`` of any integer type. Objects 1…254 begin here, 0 is background.
    """

    number: int
    image: np.ndarray
    mask: np.ndarray | None = None


class _Reference(NamedTuple):
    features: Tensor  # (h, w, C)
    ids: list[int]
    masks: Tensor  # (O, h, w)
    mask: np.ndarray  # (H, W)


class ClipSession:
    """Follow objects through one clip.

    Objects may begin at any frame. An object is absent before its first frame, and its prediction on that frame is the
    given mask. For the objects of each reference frame, the model receives this frame and the later ones, whose numbers
    count from it. If a clip is processed in parts, the model receives a part together with the reference frame.

    Args:
        model (SSTNetwork): for example an :class:`~mmattn.video.SST`, in eval mode.
        scale, max_frames, sampling: as in ``test_cfg`` of :class:`~mmattn.video.SST`. Only :meth:`segment_clip` uses
            ``sampling``.

    Example::

        session = ClipSession(model.eval(), max_frames=16)
        frames = (Frame(i, image, mask if i == 0 else None) for i, image in enumerate(images))
        masks = [ids for _, ids in session.segment(frames)]
    """

    def __init__(
        self,
        model: SSTNetwork,
        scale: tuple[int, int] | None = None,
        max_frames: int | None = None,
        sampling: str = 'dense',
    ) -> None:
        self.model = model
        self.scale = scale
        self.max_frames = max_frames
        self.sampling = sampling
        self._references: dict[int, _Reference] = {}
        self._size: tuple[int, ...] | None = None

    @property
    def first_frames(self) -> dict[int, int]:
        """The number of the first frame of each object, by id."""
        return {i: number for number, reference in self._references.items() for i in reference.ids}

    @torch.no_grad()
    def segment(
        self, frames: Iterable[Frame], skip: Callable[[list[int]], bool] = lambda numbers: False
    ) -> Iterator[tuple[Frame, np.ndarray]]:
        """Yield each frame with its ids, uint8 ``(H, W)``. Frames are processed in parts of at most ``max_frames``.

        Args:
            frames (iterable of Frame): in the order of their numbers, and all of one size. A mask may only show objects
                that have not begun yet.
            skip (Callable): receives the frame numbers of a part, and returns whether its results are not required. It
                does not change where parts begin. Defaults to never.
        """
        part: list[Frame] = []
        last = None
        for frame in frames:
            _check_frame(frame)
            if last is not None and frame.number <= last:
                raise ValueError(f'frames must be in the order of their numbers; got {frame.number} after {last}')
            last = frame.number
            if frame.mask is not None:
                self.add(frame)
            part.append(frame._replace(image=frame.image.copy()))  # the caller may reuse the buffer
            outside = bool(self._references.keys() - {frame.number for frame in part})
            if self.max_frames is not None and len(part) + outside >= self.max_frames:
                if not skip([frame.number for frame in part]):
                    yield from self._segment_part(part)
                part = []
        if part and not skip([frame.number for frame in part]):
            yield from self._segment_part(part)

    def segment_clip(self, sample: BaseDataElement) -> np.ndarray:
        """Segment a whole clip, as made by ``PackClip``: ids, uint8 ``(T, H, W)``.

        At most ``max_frames`` + 1 frames are held in memory. A frame that cannot be read, or has another size than the
        masks, raises an error that names its file.
        """
        count = len(sample.frames)
        ids = np.zeros((count, *sample.ori_shape), np.uint8)
        position = {number: i for i, number in enumerate(sample.frame_numbers)}
        if self.sampling == 'sparse' and self.max_frames is not None and count > self.max_frames:
            for at in sample.given:
                self.add(_frame(sample, at, True))
            parts = -(-count // (self.max_frames - 1))  # a reference comes with each part
            results: Iterable[tuple[Frame, np.ndarray]] = (
                result
                for start in range(parts)
                for result in self._segment_part([_frame(sample, at) for at in range(start, count, parts)])
            )
        else:
            results = self.segment(_frame(sample, at, at in sample.given) for at in range(count))
        for frame, frame_ids in results:
            ids[position[frame.number]] = frame_ids
        return ids

    @torch.no_grad()
    def add(self, frame: Frame) -> None:
        """Register a frame as the reference of the objects in its mask. At least one object must begin there."""
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
        repeated = set(ids) & set(self.first_frames)
        if repeated:
            raise ValueError(f'the mask of frame {frame.number} shows objects that already began: {sorted(repeated)}')
        features, _, _ = self._features([frame])
        image = self.resize(frame.image)
        masks = np.stack([mask == i for i in ids])
        shares = F.interpolate(torch.from_numpy(masks).float()[None], image.shape[:2], mode='area')[0]
        pad = self.model.data_preprocessor.pad_size_divisor
        shares = F.pad(shares, (0, -shares.shape[2] % pad, 0, -shares.shape[1] % pad))
        self._references[frame.number] = _Reference(
            features[0], ids, shrink_masks(shares.to(features.device), features.shape[1:3]), mask
        )

    def _segment_part(self, part: list[Frame]) -> Iterator[tuple[Frame, np.ndarray]]:
        part = sorted(part, key=lambda frame: frame.number)
        features, fine, size = self._features(part)
        streams: list[dict[int, Tensor]] = [{} for _ in part]  # per frame, (h, w, C) by object
        for number in self._references:
            later = [at for at, frame in enumerate(part) if frame.number > number]
            if later:
                followed = self._follow(number, [part[at].number for at in later], features[later])
                for id_, stream in zip(self._references[number].ids, followed):
                    for at, frame_stream in zip(later, stream):
                        streams[at][id_] = frame_stream
        for at, frame in enumerate(part):
            yield frame, self._labels(frame, streams[at], None if fine is None else fine[at], size)

    def _follow(self, number: int, numbers: list[int], features: Tensor) -> Tensor:
        """Follow the objects of a reference frame through later frames, as in training: it comes first, as frame 0."""
        reference = self._references[number]
        count = len(reference.ids)
        streams = self.model.object_streams(
            torch.cat([reference.features[None], features]).unsqueeze(0),
            torch.tensor([[0, *(later - number for later in numbers)]], device=features.device),
            reference.features.expand(count, -1, -1, -1),
            reference.masks,
            torch.zeros(count, dtype=torch.long, device=features.device),
        )
        return streams[:, 1:]

    def _labels(
        self, frame: Frame, streams: dict[int, Tensor], fine: Tensor | None, size: tuple[int, int]
    ) -> np.ndarray:
        ids = sorted(streams)
        labels = np.zeros(frame.image.shape[:2], np.uint8)
        if ids:
            scale = self.resize(frame.image).shape[:2]
            foreground = torch.cat(
                [
                    F.interpolate(
                        self.model.head(streams[i][None], fine, size)[:, :, : scale[0], : scale[1]].float(),
                        labels.shape,
                        mode='bilinear',
                        align_corners=False,
                    ).softmax(1)[:, 1]
                    for i in ids
                ]
            )
            winner = aggregate(foreground, self.model.aggregation).argmax(0).cpu().numpy()
            labels = np.array([0, *ids], np.uint8)[winner]
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
        for start in range(0, len(frames), FRAMES_AT_ONCE):
            images = np.stack([self.resize(frame.image) for frame in frames[start : start + FRAMES_AT_ONCE]])
            device = next(self.model.parameters()).device
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


def _frame(sample: BaseDataElement, position: int, with_mask: bool = False) -> Frame:
    mask = sample.given[position].cpu().numpy() if with_mask else None
    return Frame(sample.frame_numbers[position], sample.frames[position], mask)


@torch.no_grad()
def segment_clips(model: Any, samples: list[BaseDataElement]) -> list[BaseDataElement]:
    """Add ``pred_masks`` to samples of whole clips: ``data``, the predicted ids, uint8 ``(T, H, W)``."""
    for sample in samples:
        session = ClipSession(model, **model.test_cfg)
        sample.pred_masks = PixelData(data=torch.from_numpy(session.segment_clip(sample)))
    return samples


def check_settings(test_cfg: dict) -> dict:
    """Check and copy the settings of a session."""
    unknown = set(test_cfg) - {'scale', 'max_frames', 'sampling'}
    if unknown:
        raise ValueError(f'the keys of test_cfg must be scale, max_frames and sampling; got {sorted(unknown)}')
    if test_cfg.get('sampling', 'dense') not in SAMPLINGS:
        raise ValueError(f'test_cfg.sampling must be one of {SAMPLINGS}; got {test_cfg["sampling"]!r}')
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
