"""Inference on video files and folders of frames of any length: one index mask per frame, and an overlay video."""

import json
import logging
import resource
import sys
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.runner import load_checkpoint
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn, track

from mmattn.engine import check_checkpoint  # it also registers `_base_ = 'mmattn::…'`
from mmattn.registry import MODELS
from mmattn.utils.component_type import check_model
from mmattn.utils.devices import check_device
from mmattn.utils.files import atomic_write, check_path, check_writable, exclusive, remove_temporary_files, write_text
from mmattn.utils.trained_model import warn_of_differences

from .clip_readers import Clip, FrameFolder, VideoFile
from .given_masks import Masks, find_masks, read_masks
from .masks import draw_overlay, read_mask, write_mask
from .session import ClipSession, Frame
from .sst import SST

MIB = 2**20


class VOSInferencer:
    """Follow objects through clips of any length, given one mask per object. Memory does not grow with the length.

    Attributes:
        summary (str): frames per second and peak memory of the last call.

    Args:
        model (str, Path or Config): config of an :class:`~mmattn.video.SST`, or its path.
        weights (str, optional): path or URL of the checkpoint. None keeps the random initial weights, for trials.
        device (str, optional): for example 'cpu' or 'cuda:1'. Defaults to a GPU if there is one.
        show_progress (bool): show a progress bar. Defaults to True.

    Raises:
        OSError: the config or the checkpoint does not exist.
        RuntimeError: the checkpoint does not fit the model. The message lists the keys.

    Example::

        follow = VOSInferencer('configs/sst/sst-grid_r18-d8-half_1xb4-400_davis-240p.py', 'iter_400.pth')
        paths = follow('clip.mp4', 'first.png', out_dir='followed')
    """

    def __init__(
        self,
        model: str | Path | Config,
        weights: str | Path | None,
        device: str | None = None,
        show_progress: bool = True,
    ) -> None:
        self.device = check_device(device)
        self.cfg = model if isinstance(model, Config) else Config.fromfile(model)
        self.show_progress = show_progress
        self.summary = ''
        check_model(self.cfg, SST, 'an SST')
        self.model = MODELS.build(self.cfg.model)
        if weights is None:
            print_log('weights is None: the model is not trained', 'current', logging.WARNING)
        else:
            check_checkpoint(weights)
            checkpoint = load_checkpoint(self.model, str(weights), map_location='cpu', strict=True)
            warn_of_differences(str(weights), checkpoint.get('meta') or {}, self.cfg.model)
        state = self.model.state_dict()
        self._settings = dict(
            config=self.cfg.model.to_dict(),
            weights=weights and str(weights),
            weights_sha256=_digest(x.reshape(-1).view(torch.uint8).numpy() for x in state.values()),
        )
        self.model.to(self.device).eval()

    def __call__(
        self,
        video: str | Path,
        masks: Masks,
        out_dir: str | Path,
        max_frames: int | None = 16,
        overlay: bool = True,
        opacity: float = 0.5,
        single_object: bool = False,
        overwrite: bool = False,
    ) -> list[Path]:
        """Write ``masks/<frame>.png`` for each frame, and ``overlay.mp4``, to ``out_dir``.

        A mask is a palette PNG whose indices are the object ids. Frames of a video file are named by a five-digit index
        that starts at 00000. The masks of a part of the clip are written when the model has processed the part. All
        writes are atomic. If you repeat the call after an interruption, parts whose masks all exist are skipped.
        ``run.json`` records input and settings. The file ``.lock`` keeps other runs out of the folder.

        Args:
            video (str or Path): a video file, or a folder of frames. Frames are in natural order: digits in their names
                count as numbers.
            masks (str, Path, or sequence of str or Path): palette or grey images in a lossless format whose values are
                the ids of the objects to follow, or folders of such images. A mask belongs to a frame as follows:

                * ``<path>@20`` belongs to frame 20.
                * A mask with exactly the name of a frame belongs to that frame.
                * Of several masks, or in a folder, a mask whose name is a number belongs to the frame with this number.
                * If one number varies in the names of a folder of several masks, it is the number of the frame.
                * One mask with any other name belongs to the first frame.

                An object begins at the first mask that shows it. Masks that show it again cause a warning.
            out_dir (str or Path): folder, which is created if necessary.
            max_frames (int, optional): number of frames that the model processes at once, including reference frames,
                at least 2. None means all. It replaces ``max_frames`` in ``test_cfg`` of the config, and the frames are
                always consecutive. Defaults to 16.
            overlay (bool): write the overlay video, see :func:`~mmattn.video.draw_overlay`. Defaults to True.
            opacity (float): opacity of the overlay's colours, 0 to 1. Defaults to 0.5.
            single_object (bool): make all values except 0 in the masks object 1. Defaults to False: 255 is void.
            overwrite (bool): first remove the results of another run from ``out_dir``. Defaults to False.

        Returns:
            list of Path: the masks, in the order of the frames.

        Raises:
            FileNotFoundError: the video does not exist.
            BlockingIOError: another run uses ``out_dir``.
            ValueError: frames are missing, unreadable or of different sizes, a mask does not fit the frames, or
                ``out_dir`` holds the input or the results of another run. All this is checked before the model runs,
                except that a video may end before the frame of a mask. The message lists the files.
            OSError: ``out_dir`` is not writable, OpenCV cannot write an overlay of this size, or a file cannot be
                written completely. The error names the file.
        """
        if max_frames is not None and max_frames < 2:
            raise ValueError(f'max_frames must be at least 2, a reference frame and another; got {max_frames}')
        if not 0 <= opacity <= 1:
            raise ValueError(f'opacity must be from 0 to 1; got {opacity}')
        video, out_dir = check_path('video', video), check_path('out_dir', out_dir)
        folder, overlay_path = out_dir / 'masks', out_dir / 'overlay.mp4'
        check_writable(out_dir)
        check_writable(folder)
        clip = FrameFolder(video) if video.is_dir() else VideoFile(video)
        paths = find_masks(clip, masks)
        first_masks = read_masks(paths, clip, single_object)
        inputs = {path.resolve() for path in (*clip.files, *(path for path, _ in paths.values()))}
        if folder.resolve() in {path.parent for path in inputs} or overlay_path.resolve() in inputs:
            raise ValueError(f'{out_dir} holds frames or masks of the input; choose another out_dir')
        if overlay:
            with TemporaryDirectory() as trial:
                _open_writer(Path(trial, 'overlay.mp4'), overlay_path, clip).release()
        settings = dict(
            video=str(video.resolve()),
            files_sha256=_digest(
                f'{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}\n'.encode() for path in clip.files
            ),
            masks_sha256={str(number): _digest([mask]) for number, mask in first_masks.items()},
            max_frames=max_frames,
            **self._settings,
        )
        with exclusive(out_dir):
            _claim(out_dir, settings, overwrite)
            written = self._segment(clip, first_masks, folder, max_frames)
            if overlay:
                self._write_overlay(overlay_path, clip, written, opacity)
        return written

    def _segment(
        self, clip: Clip, first_masks: dict[int, np.ndarray], folder: Path, max_frames: int | None
    ) -> list[Path]:
        written: dict[int, Path] = {}

        def frames() -> Iterator[Frame]:
            for number, image in clip.read():
                written[number] = folder / f'{clip.name(number)}.png'
                yield Frame(number, image, first_masks.get(number))

        def skip(numbers: list[int]) -> bool:
            exist = all(written[number].exists() for number in numbers)
            progress.advance(task, exist * len(numbers))
            return exist

        session = ClipSession(self.model, **{**self.model.test_cfg, 'max_frames': max_frames, 'sampling': 'dense'})
        if self.device.type == 'cuda':
            torch.cuda.reset_peak_memory_stats(self.device)
        columns = (
            TextColumn('{task.description}'),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn('{task.fields[summary]}'),
        )
        with Progress(*columns, disable=not self.show_progress) as progress:
            task = progress.add_task('Segmentation', total=clip.length, summary='')
            start = perf_counter()
            self.summary = 'no frame left to segment'
            for count, (frame, ids) in enumerate(session.segment(frames(), skip), 1):
                write_mask(written[frame.number], ids)
                self.summary = (
                    f'{count / (perf_counter() - start):.2f} frames per second, peak memory '
                    f'{_peak_memory(self.device):.0f} MiB'
                )
                progress.update(task, advance=1, summary=self.summary)
        beyond = first_masks.keys() - written.keys()
        if beyond:
            raise ValueError(
                f'{clip.path}: only {len(written)} of {clip.length} frames can be decoded, but a mask is given '
                f'for frame {min(beyond)}'
            )
        if clip.length is not None and len(written) < clip.length:
            print_log(f'{clip.path}: {len(written)} of {clip.length} frames can be decoded', 'current', logging.WARNING)
        return list(written.values())

    def _write_overlay(self, path: Path, clip: Clip, masks: list[Path], opacity: float) -> None:
        bottom, right = (side % 2 for side in clip.size)  # MPEG-4 requires even sides
        with atomic_write(path) as temporary:
            writer = _open_writer(temporary, path, clip)
            frames = zip(masks, clip.read())
            for mask, (_, image) in track(frames, 'Overlay', len(masks), disable=not self.show_progress):
                drawn = draw_overlay(image, _read_result(mask), opacity)
                writer.write(cv2.copyMakeBorder(drawn, 0, bottom, 0, right, cv2.BORDER_REPLICATE))
            writer.release()
            count = _count_frames(temporary)  # OpenCV reports no error when a write fails
            if count != len(masks):
                raise OSError(f'{path}: {count} of {len(masks)} frames could be written; is the disk full?')


def _read_result(path: Path) -> np.ndarray:
    try:
        return read_mask(path)
    except ValueError as error:
        raise ValueError(f'{error}; delete it, and run the same command again') from error


def _open_writer(path: Path, named: Path, clip: Clip) -> cv2.VideoWriter:
    # `named` is the path in error messages
    height, width = (side + side % 2 for side in clip.size)
    writer = cv2.VideoWriter(str(path.absolute()), cv2.VideoWriter.fourcc(*'mp4v'), clip.frame_rate, (width, height))
    if not writer.isOpened():
        raise OSError(
            f'{named}: OpenCV cannot write MPEG-4 of {width}×{height}, {clip.frame_rate:g} frames per second; set '
            'overlay=False (--no-overlay) for the masks alone'
        )
    return writer


def _count_frames(path: Path) -> int:
    video = cv2.VideoCapture(str(path.absolute()))
    count = 0
    while video.read()[0]:
        count += 1
    video.release()
    return count


def _claim(out_dir: Path, settings: dict[str, Any], overwrite: bool) -> None:
    """Prepare the locked output folder, unless it holds the results of a run with other settings."""
    record, masks = out_dir / 'run.json', out_dir / 'masks'
    text = json.dumps(settings, indent=2, default=str)
    if record.exists():
        try:
            earlier = json.loads(record.read_text(encoding='utf-8'))
        except ValueError as error:
            raise ValueError(f'{record}: {error}') from error
        settings = json.loads(text)
        differing = [key for key in settings if earlier.get(key) != settings[key]]
        if differing and not overwrite:
            raise ValueError(
                f'{out_dir} holds results of another run, which differs in {", ".join(differing)} (see '
                f'{record}); choose another folder, or set overwrite=True (--overwrite)'
            )
        if overwrite:
            for path in (*masks.glob('*.png'), out_dir / 'overlay.mp4'):
                path.unlink(missing_ok=True)
    elif masks.exists() and any(masks.iterdir()):
        raise ValueError(
            f'{masks} holds files, and there is no {record.name} next to it that records their run; choose another '
            'folder'
        )
    masks.mkdir(parents=True, exist_ok=True)
    for folder in (out_dir, masks):
        remove_temporary_files(folder)  # left by a killed run
    write_text(record, text)


def _digest(parts: Iterable[Any]) -> str:
    digest = sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _peak_memory(device: torch.device) -> float:
    if device.type == 'cuda':
        return torch.cuda.max_memory_allocated(device) / MIB
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (MIB if sys.platform == 'darwin' else 1024)
