"""Inference on video files and folders of frames of any length: one index mask per frame, and an overlay video."""

import json
import logging
import os
import re
import resource
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.runner import load_checkpoint
from PIL import Image
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn, track

import mmattn.engine  # noqa: F401  (registers the types in checkpoints, and `_base_ = 'mmattn::…'`)
from mmattn.registry import MODELS
from mmattn.utils.devices import check_device
from mmattn.utils.files import atomic_write, check_writable, exclusive, remove_temporary_files, write_text

from .clip_files import find_faults, find_files, find_gaps, find_images, orientation, read_frame
from .masks import black_objects, keep_objects, object_ids, read_mask, write_mask
from .overlay import draw_overlay
from .session import ClipSession, Frame
from .sst import SST

MIB = 2**20
FRAME_RATE = 24.0  # of an overlay, if the clip's own frame rate is unknown or out of range
FRAME_RATES = 0.01, 1000.0  # range of MPEG-4 files written by OpenCV
ANIMATIONS = 'GIF', 'PNG'  # image formats that OpenCV decodes as videos; of a TIFF, it decodes only the first page
MANY_FILES = 10  # the most files that a message lists
MANY_OBJECTS = 30  # more ids in one mask are probably smoothed edges

Masks = str | Path | Sequence[str | Path]


class VOSInferencer:
    """Follow objects, each given by one mask, through clips of any length. Memory does not grow with the length.

    Attributes:
        summary (str): frames per second and peak memory of the last call.

    Args:
        model (str, Path or Config): config of an :class:`~mmattn.video.SST`, or its path.
        weights (str, optional): path or URL of the checkpoint. None keeps the random initial weights, for trials.
        device (str, optional): for example 'cpu' or 'cuda:1'. Defaults to a GPU if there is one.
        show_progress (bool): show a progress bar. Defaults to True.

    Raises:
        OSError: the config or the checkpoint does not exist.
        RuntimeError: the checkpoint does not fit the model; the message lists the keys.
        ValueError: the model of the config is not an SST, or there is no such device.

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
        self.model = MODELS.build(self.cfg.model)
        if not isinstance(self.model, SST):
            raise ValueError(f'the model must be an SST; the config has {self.cfg.model.type}')
        if weights is None:
            print_log('weights is None: the model is not trained', 'current', logging.WARNING)
        else:
            load_checkpoint(self.model, str(weights), map_location='cpu', strict=True)
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
        that starts at 00000. All writes are atomic. The masks of a part of the clip are written when the model has
        processed it.
        An interrupted run resumes: parts whose masks all exist are skipped. ``run.json`` records input and settings.
        The file ``.lock`` keeps other runs out of the folder.

        Args:
            video (str or Path): a video file, or a folder of frames. Frames whose names all end in numbers are ordered
                by number, others by name.
            masks (str, Path or sequence of them): masks of the objects to follow: palette or grey images in a lossless
                format whose values are the ids, or folders of such images. A mask is assigned to a frame as follows:

                * ``<path>@20`` belongs to frame 20.
                * A mask with exactly the name of a frame belongs to that frame.
                * Of several masks, or in a folder, a mask whose name is a number belongs to the frame with this number.
                * If all names in a folder of several masks end in numbers, they belong to the frames with these
                  numbers.
                * One mask with any other name belongs to the first frame.

                An object begins at the first mask that shows it. Masks that show it again cause a warning.
            out_dir (str or Path): folder; it is created if necessary.
            max_frames (int, optional): number of frames that the model processes at once, including reference frames,
                at least 2; None is all. It replaces ``max_frames`` in ``test_cfg`` of the config; the frames are always
                consecutive. Defaults to 16.
            overlay (bool): write the overlay video, see :func:`~mmattn.video.overlay.draw_overlay`. Defaults to True.
            opacity (float): opacity of its colours, 0 to 1. Defaults to 0.5.
            single_object (bool): all values except 0 in the masks are object 1. Defaults to False: 255 is void.
            overwrite (bool): first remove the results of another run from ``out_dir``. Defaults to False.

        Returns:
            list of Path: the masks, in the order of the frames.

        Raises:
            FileNotFoundError: the video does not exist.
            BlockingIOError: another run uses ``out_dir``.
            ValueError: before the model runs: frames are missing, unreadable or of different sizes; there is no mask;
                masks are unreadable, empty, of another size than the frames, for the same frame or for no frame;
                ``out_dir`` holds the results of another run, or the input; ``max_frames`` or ``opacity`` is out of
                range. Later: the video ends before the frame of a mask. The message lists the files.
            OSError: before the model runs: ``out_dir`` is not writable, or OpenCV cannot write an overlay of this size.
                Later: a file cannot be written completely. The error names the file.
        """
        if max_frames is not None and max_frames < 2:
            raise ValueError(f'max_frames must be at least 2, a reference frame and another; got {max_frames}')
        if not 0 <= opacity <= 1:
            raise ValueError(f'opacity must be from 0 to 1; got {opacity}')
        out_dir = Path(out_dir)
        folder, overlay_path = out_dir / 'masks', out_dir / 'overlay.mp4'
        check_writable(out_dir)
        check_writable(folder)
        clip = _FrameFolder(Path(video)) if Path(video).is_dir() else _VideoFile(Path(video))
        paths = _find_masks(clip, masks)
        given = _read_masks(paths, clip, single_object)
        inputs = {path.resolve() for path in (*clip.files, *(path for path, _ in paths.values()))}
        if folder.resolve() in {path.parent for path in inputs} or overlay_path.resolve() in inputs:
            raise ValueError(f'{out_dir} holds frames or masks of the input; choose another out_dir')
        if overlay:
            with TemporaryDirectory() as trial:
                _open_writer(Path(trial, 'overlay.mp4'), overlay_path, clip).release()
        settings = dict(
            video=str(Path(video).resolve()),
            files_sha256=_digest(f'{path.name} {path.stat().st_size}\n'.encode() for path in clip.files),
            masks_sha256={str(number): _digest([mask]) for number, mask in given.items()},
            max_frames=max_frames,
            **self._settings,
        )
        with exclusive(out_dir):
            _claim(out_dir, settings, overwrite)
            written = self._segment(clip, given, folder, max_frames)
            if overlay:
                self._write_overlay(overlay_path, clip, written, opacity)
        return written

    def _segment(self, clip: '_Clip', given: dict[int, np.ndarray], folder: Path, max_frames: int | None) -> list[Path]:
        """Write the masks that do not exist yet; return the paths of all masks."""
        written: dict[int, Path] = {}

        def frames() -> Iterator[Frame]:
            for number, image in clip.read():
                written[number] = folder / f'{clip.name(number)}.png'
                yield Frame(number, image, given.get(number))

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
        beyond = given.keys() - written.keys()
        if beyond:
            raise ValueError(
                f'{clip.path}: only {len(written)} of {clip.length} frames can be decoded, but a mask is given '
                f'for frame {min(beyond)}'
            )
        if clip.length is not None and len(written) < clip.length:
            print_log(f'{clip.path}: {len(written)} of {clip.length} frames can be decoded', 'current', logging.WARNING)
        return list(written.values())

    def _write_overlay(self, path: Path, clip: '_Clip', masks: list[Path], opacity: float) -> None:
        """Write a video of the frames with the masks drawn over them."""
        bottom, right = (side % 2 for side in clip.size)  # MPEG-4 requires even sides
        with atomic_write(path) as temporary:
            writer = _open_writer(temporary, path, clip)
            frames = zip(masks, clip.read())
            for mask, (_, image) in track(frames, 'Overlay', len(masks), disable=not self.show_progress):
                drawn = draw_overlay(image, read_mask(mask), opacity)
                writer.write(cv2.copyMakeBorder(drawn, 0, bottom, 0, right, cv2.BORDER_REPLICATE))
            writer.release()
            count = _count_frames(temporary)  # OpenCV reports no error when a write fails
            if count != len(masks):
                raise OSError(f'{path}: {count} of {len(masks)} frames could be written; is the disk full?')


class _FrameFolder:
    """A clip in a folder of images.

    Attributes:
        path (Path): the folder.
        files (list of Path): the images.
        length (int): number of frames.
        size (tuple[int, int]): height and width of the frames.
        frame_rate (float): frames per second.

    Raises:
        ValueError: frames are missing, unreadable, or of different sizes; the message lists them.
    """

    frame_rate: float = FRAME_RATE

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files, self._numbers, _, faults = find_files(path, Path(os.devnull))
        faults += find_gaps(self.files, self._numbers)
        faults += find_faults(self.files, [])
        names = [file.stem for file in self.files]
        _raise_for(faults, f'the frames in {path}')
        self._names = dict(zip(self._numbers, names))
        self._by_name = dict(zip(names, self._numbers))
        endings = [re.search(r'\d+$', name) for name in names]
        self._by_ending = {
            int(ending[0]) if ending and all(endings) else number: number
            for ending, number in zip(endings, self._numbers)
        }
        others = {file for file in path.iterdir() if file.is_file()} - set(self.files)
        rest = sorted(file.name for file in others if not file.name.startswith('.'))
        if rest:
            more = f' and {len(rest) - MANY_FILES} more' if len(rest) > MANY_FILES else ''
            print_log(f'{path}: ignored, not named like frames: {", ".join(rest[:MANY_FILES])}{more}', 'current')
        turned = [file.name for file in self.files if orientation(file) != 1]
        if turned:
            print_log(
                f'{path}: {len(turned)} frames, the first of which is {turned[0]}, have an EXIF orientation, which is '
                'ignored; masks must match the pixels as stored in the file',
                'current',
                logging.WARNING,
            )
        self.length: int | None = len(self.files)
        self.size = read_frame(self.files[0]).shape[:2]

    def read(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the number of each frame, and the image, uint8 ``(H, W, 3)``, BGR."""
        yield from zip(self._numbers, map(read_frame, self.files))

    def name(self, number: int) -> str:
        """Return the name of a frame."""
        return self._names[number]

    def find(self, name: str) -> int | None:
        """Return the number of the frame with exactly this name, or None."""
        return self._by_name.get(name)

    def find_number(self, digits: str) -> int:
        """Return the number of the frame whose name ends in these digits, or at this position if names have no digits.

        Raises:
            ValueError: there is no such frame.
        """
        if int(digits) not in self._by_ending:
            first, last = self.files[0].name, self.files[-1].name
            raise ValueError(f'no frame {digits} in {self.path}, whose first frame is {first} and last frame is {last}')
        return self._by_ending[int(digits)]


class _VideoFile:
    """A clip in a video file, with the attributes and methods of :class:`_FrameFolder`; ``length`` may be None.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is a still picture, or OpenCV cannot decode its first frame.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise FileNotFoundError(f'no video or folder {path}')
        with suppress(OSError), Image.open(path) as picture:  # PIL raises an OSError for files other than images
            if picture.format not in ANIMATIONS or not getattr(picture, 'is_animated', False):
                raise ValueError(f'{path}: a picture; a clip must be a video file or a folder of frames')
        self.path = path
        self.files = [path]
        video = cv2.VideoCapture(str(path))
        whole, image = video.read()
        if not whole:
            raise ValueError(f'{path}: OpenCV cannot decode a frame of this file')
        self.size = image.shape[:2]
        length = int(video.get(cv2.CAP_PROP_FRAME_COUNT))
        self.length = length if length > 0 else None
        rate = video.get(cv2.CAP_PROP_FPS)
        self.frame_rate: float = rate if FRAME_RATES[0] <= rate <= FRAME_RATES[1] else FRAME_RATE
        video.release()

    def read(self) -> Iterator[tuple[int, np.ndarray]]:
        video = cv2.VideoCapture(str(self.path))  # mmcv's reader seeks, which fails if the container's count is wrong
        number = 0
        while (found := video.read())[0]:
            if found[1].shape[:2] != self.size:
                height, width = found[1].shape[:2]
                raise ValueError(
                    f'{self.path}: frame {number} is {width}×{height}, earlier ones are {self.size[1]}×{self.size[0]}'
                )
            yield number, found[1]
            number += 1
        video.release()

    def name(self, number: int) -> str:
        return f'{number:05}'

    def find(self, name: str) -> None:
        return None  # frames have no names

    def find_number(self, digits: str) -> int:
        if self.length is not None and int(digits) >= self.length:
            raise ValueError(
                f'no frame {int(digits)} in {self.path}, whose first frame is 0 and last frame is {self.length - 1}'
            )
        return int(digits)


_Clip = _FrameFolder | _VideoFile


class _MaskFile(NamedTuple):
    path: Path
    number: str  # after '@', or ''
    alone: bool  # given as a file, not in a folder


def _find_masks(clip: _Clip, masks: Masks) -> dict[int, tuple[Path, bool]]:
    """Return the mask of each frame, by ascending number, and whether it was given as a file, not in a folder."""
    listed: list[_MaskFile] = []
    numbered: set[Path] = set()  # in folders of several masks whose names all end in numbers
    for given in [masks] if isinstance(masks, str | Path) else masks:
        before, _, digits = str(given).rpartition('@')
        if Path(given).is_dir():
            files = sorted(find_images(Path(given)))
            listed += (_MaskFile(file, '', False) for file in files)
            if len(files) > 1 and all(_ending(file) for file in files):
                numbered.update(files)
        elif before and digits.isdecimal():
            listed.append(_MaskFile(Path(before), digits, True))
        else:
            listed.append(_MaskFile(Path(given), '', True))
    if not listed:
        raise ValueError(f'masks: there is no mask in {masks}')

    def frame_of(mask: _MaskFile) -> int | None:
        """Return the number of a mask's frame, or None if the name does not determine it."""
        if mask.number:
            return clip.find_number(mask.number)
        name = mask.path.stem
        found = clip.find(name)
        if found is None and name.isdecimal() and (len(listed) > 1 or not mask.alone):
            return clip.find_number(name)
        if found is None and mask.path in numbered:
            return clip.find_number(_ending(mask.path))
        return found

    found: dict[int, tuple[Path, bool]] = {}
    unnumbered: Path | None = None
    faults = []
    for mask in listed:
        path = mask.path
        try:
            number = frame_of(mask)
        except ValueError as error:
            faults.append(f'{path}: {error}')
            continue
        if number is None and (unnumbered or not (mask.alone or len(listed) == 1)):
            faults.append(
                f'{path}: its frame is unknown; name it like its frame, or append @ and the number: {path.name}@20'
            )
            continue
        if number is None:
            unnumbered, number = path, 0
        if number in found:
            faults.append(
                f'{path}: belongs to the same frame as {found[number][0]}; a frame has one mask, in which each object '
                'has its own id'
            )
        found.setdefault(number, (path, mask.alone))
    _raise_for(faults, 'the masks')
    return dict(sorted(found.items()))


def _ending(path: Path) -> str:
    """Return the digits at the end of a file's name, or ''."""
    return re.search(r'\d*$', path.stem)[0]  # type: ignore[index]


def _read_masks(paths: dict[int, tuple[Path, bool]], clip: _Clip, single_object: bool) -> dict[int, np.ndarray]:
    """Return, for each frame at which objects begin, the uint8 ``(H, W)`` mask of these objects."""
    given = {}
    first_frames: dict[int, int] = {}
    repeated: dict[int, list[Path]] = {}
    begun, faults = [], []
    for number, (path, alone) in paths.items():
        try:
            mask = read_mask(path, single_object)
        except FileNotFoundError:
            faults.append(f'{path}: no such file{_spelling(path)}')
            continue
        except (OSError, ValueError) as error:
            faults.append(f'{error}')
            continue
        ids = object_ids(mask)
        if mask.shape != clip.size:
            faults.append(
                f'{path}: {mask.shape[1]}×{mask.shape[0]}; the frames of {clip.path} are '
                f'{clip.size[1]}×{clip.size[0]} (width×height)'
            )
        elif alone and not ids:
            hint = '; 255 is void: for a mask of 0 and 255 set single_object=True (--single-object)'
            faults.append(f'{path}: shows no object{hint if read_mask(path, True).any() else ""}')
        new = [i for i in ids if i not in first_frames]
        for i in set(ids) - set(new):
            repeated.setdefault(i, []).append(path)
        if new:
            given[number] = keep_objects(mask, new)
            first_frames.update(dict.fromkeys(new, number))
            begun.append(
                f'{path}: {"object" if len(new) == 1 else "objects"} {", ".join(map(str, new))} from '
                f'frame {clip.name(number)} on'
            )
        black = black_objects(path)
        if black:
            message = (
                f'{path}: object {black[0]} is black, and id 0, the background, has a colour; check that the '
                'background has id 0'
            )
            print_log(message, 'current', logging.WARNING)
        if len(new) > MANY_OBJECTS:
            message = f'{path}: {len(new)} objects; every value except 0 and 255 is one, also on smoothed edges'
            print_log(message, 'current', logging.WARNING)
    if not (given or faults):
        faults = [f'{path}: shows no object' for path, _ in paths.values()]
    _raise_for(faults, 'the masks')
    print_log('\n'.join(begun), 'current')
    for i, files in sorted(repeated.items()):
        more = f' and {len(files) - 1} more masks, up to {files[-1].name}' if len(files) > 1 else ''
        message = f'{files[0]}{more}: object {i} is ignored; it begins at frame {clip.name(first_frames[i])}'
        print_log(message, 'current', logging.WARNING)
    return given


def _spelling(path: Path) -> str:
    """Return a hint for ``mask@20.png``, in which the frame number belongs after the suffix, or ''."""
    stem, _, number = path.stem.rpartition('@')
    return f'; frame {number} is written {stem}{path.suffix}@{number}' if stem and number.isdecimal() else ''


def _open_writer(path: Path, named: Path, clip: _Clip) -> cv2.VideoWriter:
    """Open an MPEG-4 file for the overlay of a clip; ``named`` is the path in error messages.

    Raises:
        OSError: OpenCV cannot write such a file.
    """
    height, width = (side + side % 2 for side in clip.size)
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*'mp4v'), clip.frame_rate, (width, height))
    if not writer.isOpened():
        raise OSError(
            f'{named}: OpenCV cannot write MPEG-4 of {width}×{height}, {clip.frame_rate:g} frames per second; set '
            'overlay=False (--no-overlay) for the masks alone'
        )
    return writer


def _count_frames(path: Path) -> int:
    """Return the number of frames of a video that can be decoded."""
    video = cv2.VideoCapture(str(path))
    count = 0
    while video.read()[0]:
        count += 1
    video.release()
    return count


def _claim(out_dir: Path, settings: dict[str, Any], overwrite: bool) -> None:
    """Prepare the locked output folder for a run with these settings.

    Raises:
        ValueError: the folder holds the results of another run.
    """
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


def _raise_for(faults: list[str], where: str) -> None:
    if faults:
        raise ValueError(
            f'{len(faults)} {"fault" if len(faults) == 1 else "faults"} in {where}:'
            + ''.join(f'\n  {fault}' for fault in faults)
        )


def _digest(parts: Iterable[Any]) -> str:
    """Return the SHA-256 of parts, each of which is bytes or a contiguous array."""
    digest = sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _peak_memory(device: torch.device) -> float:
    """Return the peak memory in MiB: on a GPU, of the tensors of this call; otherwise, of the whole process."""
    if device.type == 'cuda':
        return torch.cuda.max_memory_allocated(device) / MIB
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (MIB if sys.platform == 'darwin' else 1024)
