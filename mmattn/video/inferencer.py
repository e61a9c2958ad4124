"""Prediction for video files and folders of frames of any length: an index mask for every frame, and an overlay."""

import json
import logging
import os
import re
import resource
import sys
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.logging import print_log
from mmengine.runner import load_checkpoint
from mmengine.utils import scandir
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn, track

import mmattn.engine  # noqa: F401  (what checkpoints hold, and `_base_ = 'mmattn::…'`)
from mmattn.registry import MODELS

from .clip_files import SUFFIXES, find_faults, find_files, find_gaps, read_frame
from .masks import keep_objects, object_ids, read_mask, write_mask
from .overlay import draw_overlay
from .session import ClipSession, Frame
from .sst import SST

MIB = 2**20
FRAME_RATE = 24  # of an overlay, where the clip has none

Masks = str | Path | Sequence[str | Path]


class VOSInferencer:
    """Follows objects, given by a mask each, through clips of any length, in memory that does not grow with it.

    Attributes:
        summary (str): frames per second and peak memory of the last call.

    Args:
        model (str, Path or Config): the config of an :class:`~mmattn.video.SST`, or its path.
        weights (str, optional): path or URL of the checkpoint. None is for trials: the weights are random.
        device (str, optional): such as 'cpu' or 'cuda:1'. Defaults to a GPU if there is one.
        show_progress (bool): show a progress bar. Defaults to True.

    Raises:
        OSError: there is no such config or checkpoint.
        RuntimeError: the checkpoint does not fit the model; it lists the keys.
        ValueError: the config is of another kind of model.
    """

    def __init__(
        self,
        model: str | Path | Config,
        weights: str | Path | None,
        device: str | None = None,
        show_progress: bool = True,
    ) -> None:
        self.cfg = model if isinstance(model, Config) else Config.fromfile(model)
        self.device = torch.device(device or get_device())
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
        """Write ``masks/<frame>.png`` for each frame, and ``overlay.mp4``, in ``out_dir``.

        A mask is a palette PNG whose indices are the ids. Frames of a video file are called by their five-digit index,
        from 00000 on. Files appear whole or not at all, the masks of a part as soon as it is through the model. A run
        that was broken off goes on where it was: parts whose masks are all there are left out. What the masks are of
        is in ``run.json``.

        Args:
            video (str or Path): a video file, or a folder of frames. Frames whose names end in numbers are ordered by
                these, the others by name.
            masks (str, Path or sequence of them): of the objects to follow, palette or grey images whose values are
                the ids, or folders of such. A mask belongs to the frame of its name, in a video file to that whose
                index is the number at the end of its name; of ``<path>@20``, to frame 20. A single mask that is called
                otherwise belongs to the first frame. Each object is taken from the first mask that shows it.
            out_dir (str or Path): folder, made if need be.
            max_frames (int, optional): frames that go through the model at once, the frames of the masks among them,
                at least 2; None is all. It takes the place of ``max_frames`` in the config's ``test_cfg``, and frames
                always come consecutively. Defaults to 16.
            overlay (bool): write the overlay, see :func:`~mmattn.video.overlay.draw_overlay`. Defaults to True.
            opacity (float): of the colours in it, 0 to 1. Defaults to 0.5.
            single_object (bool): everything but 0 in the masks is object 1. Defaults to False: 255 is void.
            overwrite (bool): remove the results of another run from ``out_dir`` first. Defaults to False.

        Returns:
            list of Path: the masks, in the order of the frames.

        Raises:
            FileNotFoundError: there is no such video.
            ValueError: before the model runs: frames are missing, unreadable or of different sizes; there is no mask;
                some cannot be read, are empty, of another size than the frames, for the same frame or for none, and it
                lists them; ``out_dir`` holds the results of another run, or its ``masks`` the input; ``max_frames`` or
                ``opacity`` is out of range. Later: the video ends sooner than its header says, before the frame of a
                mask.
            OSError: OpenCV cannot write the overlay.
        """
        if max_frames is not None and max_frames < 2:
            raise ValueError(f'max_frames must be at least 2, a reference frame and another; got {max_frames}')
        if not 0 <= opacity <= 1:
            raise ValueError(f'opacity must be from 0 to 1; got {opacity}')
        clip = _FrameFolder(Path(video)) if Path(video).is_dir() else _VideoFile(Path(video))
        paths = _find_masks(clip, masks)
        given = _read_masks(paths, clip, single_object)
        out_dir = Path(out_dir)
        folder = out_dir / 'masks'
        if folder.resolve() in {path.resolve().parent for path in (*clip.files, *(path for path, _ in paths.values()))}:
            raise ValueError(f'{folder} holds frames or masks of the input; choose another out_dir')
        settings = dict(
            video=str(Path(video).resolve()),
            files_sha256=_digest(f'{path.name} {path.stat().st_size}\n'.encode() for path in clip.files),
            masks_sha256={str(number): _digest([mask]) for number, mask in given.items()},
            max_frames=max_frames,
            **self._settings,
        )
        _claim(out_dir, settings, overwrite)
        written = self._segment(clip, given, folder, max_frames)
        if overlay:
            self._write_overlay(out_dir / 'overlay.mp4', clip, written, opacity)
        return written

    def _segment(self, clip: '_Clip', given: dict[int, np.ndarray], folder: Path, max_frames: int | None) -> list[Path]:
        """Write the masks that are not there yet; return the paths of all."""
        written: dict[int, Path] = {}

        def frames() -> Iterator[Frame]:
            for number, image in clip.read():
                written[number] = folder / f'{clip.name(number)}.png'
                yield Frame(number, image, given.get(number))

        def skip(numbers: list[int]) -> bool:
            there = all(written[number].exists() for number in numbers)
            progress.advance(task, there * len(numbers))
            return there

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
                f'{clip.path}: only {len(written)} of {clip.length} frames can be decoded, and the mask '
                f'of frame {min(beyond)} lies beyond them'
            )
        if clip.length is not None and len(written) < clip.length:
            print_log(f'{clip.path}: {len(written)} of {clip.length} frames can be decoded', 'current', logging.WARNING)
        return list(written.values())

    def _write_overlay(self, path: Path, clip: '_Clip', masks: list[Path], opacity: float) -> None:
        """Write the frames with the ids in the masks over them."""
        height, width = clip.size
        odd = height % 2, width % 2  # which MPEG-4 has not
        aside = path.with_name(f'.{path.stem}.part.mp4')
        try:
            writer = cv2.VideoWriter(
                str(aside), cv2.VideoWriter.fourcc(*'mp4v'), clip.frame_rate, (width + odd[1], height + odd[0])
            )
            if not writer.isOpened():
                raise OSError(
                    f'{path}: OpenCV cannot write MPEG-4 of {width}×{height}, {clip.frame_rate:g} frames per second'
                )
            frames = zip(masks, clip.read())
            for mask, (_, image) in track(frames, 'Overlay', len(masks), disable=not self.show_progress):
                drawn = draw_overlay(image, read_mask(mask), opacity)
                writer.write(cv2.copyMakeBorder(drawn, 0, odd[0], 0, odd[1], cv2.BORDER_REPLICATE))
            writer.release()
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)


class _FrameFolder:
    """A clip as a folder of images.

    Attributes:
        path (Path): the folder.
        files (list of Path): the images.
        length (int): how many frames there are.
        size (tuple[int, int]): their height and width.
        frame_rate (float): frames per second.

    Raises:
        ValueError: frames are missing, unreadable, or of different sizes; it lists them.
    """

    frame_rate: float = FRAME_RATE

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files, self._numbers, _, faults = find_files(path, Path(os.devnull))
        faults += find_gaps(self.files, self._numbers)
        faults += find_faults(self.files, [])
        names = [file.stem for file in self.files]
        if not faults and len(set(names)) < len(names):
            faults.append(f'{path}: frames must differ in name, not only in suffix')
        _raise_for(faults, f'the frames in {path}')
        self._names = dict(zip(self._numbers, names))
        self._by_name = dict(zip(names, self._numbers))
        endings = [re.search(r'\d+$', name) for name in names]
        self._by_ending = {
            int(ending[0]) if ending and all(endings) else number: number
            for ending, number in zip(endings, self._numbers)
        }
        self.length: int | None = len(self.files)
        self.size = read_frame(self.files[0]).shape[:2]

    def read(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the number of each frame, and the image, uint8 ``(H, W, 3)``, BGR."""
        yield from zip(self._numbers, map(read_frame, self.files))

    def name(self, number: int) -> str:
        """Return what a frame is called."""
        return self._names[number]

    def find(self, name: str) -> int | None:
        """Return the number of the frame called ``name`` or, if that is digits, of this number in its own name.

        Raises:
            ValueError: ``name`` is digits, and there is no such frame.
        """
        if name in self._by_name or not name.isdecimal():
            return self._by_name.get(name)
        if int(name) not in self._by_ending:
            raise ValueError(f'no frame {name} in {self.path}, whose last is {self.files[-1].name}')
        return self._by_ending[int(name)]


class _VideoFile:
    """A clip as a video file, with the attributes and methods of :class:`_FrameFolder`; ``length`` may be None.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: OpenCV cannot decode its first frame.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise FileNotFoundError(f'no video or folder {path}')
        self.path = path
        self.files = [path]
        video = cv2.VideoCapture(str(path))
        whole, image = video.read()
        if not whole:
            raise ValueError(f'{path}: OpenCV cannot decode a frame of it')
        self.size = image.shape[:2]
        length = int(video.get(cv2.CAP_PROP_FRAME_COUNT))
        self.length = length if length > 0 else None
        rate = video.get(cv2.CAP_PROP_FPS)
        self.frame_rate: float = rate if rate > 0 else FRAME_RATE
        video.release()

    def read(self) -> Iterator[tuple[int, np.ndarray]]:
        video = cv2.VideoCapture(str(self.path))  # mmcv's reader would seek wherever the container miscounts
        number = 0
        while (found := video.read())[0]:
            yield number, found[1]
            number += 1
        video.release()

    def name(self, number: int) -> str:
        return f'{number:05}'

    def find(self, name: str) -> int | None:
        ending = re.search(r'\d+$', name)
        if ending is None:
            return None
        if self.length is not None and int(ending[0]) >= self.length:
            raise ValueError(f'no frame {int(ending[0])} in {self.path}, whose last is {self.length - 1}')
        return int(ending[0])


_Clip = _FrameFolder | _VideoFile


def _find_masks(clip: _Clip, masks: Masks) -> dict[int, tuple[Path, bool]]:
    """Return the mask of each frame, by ascending number, and whether it was given by itself, not in a folder."""
    listed: list[tuple[Path, str, bool]] = []
    for given in [masks] if isinstance(masks, str | Path) else masks:
        before, at, name = str(given).rpartition('@')
        if Path(given).is_dir():
            listed += (
                (Path(given, file), Path(file).stem, False)
                for file in sorted(scandir(given, tuple(SUFFIXES), case_sensitive=False))
            )
        elif at and name.isdecimal():
            listed.append((Path(before), name, True))
        else:
            listed.append((Path(given), Path(given).stem, True))
    if not listed:
        raise ValueError(f'masks: there is no mask in {masks}')
    found: dict[int, tuple[Path, bool]] = {}
    faults = []
    for path, name, alone in listed:
        try:
            number = clip.find(name)
        except ValueError as error:
            faults.append(f'{path}: {error}')
            continue
        if number is None and len(listed) > 1:
            faults.append(f'{path}: of which frame? call it like one, or add @ and the number: {path.name}@0')
        elif number in found:
            faults.append(f'{path}: is of the same frame as {found[number][0]}')
        else:
            found[number or 0] = path, alone
    _raise_for(faults, 'the masks')
    return dict(sorted(found.items()))


def _read_masks(paths: dict[int, tuple[Path, bool]], clip: _Clip, single_object: bool) -> dict[int, np.ndarray]:
    """Return uint8 ``(H, W)`` masks of the objects that begin at each frame."""
    given = {}
    known: set[int] = set()
    begun, faults = [], []
    for number, (path, alone) in paths.items():
        try:
            mask = read_mask(path, single_object)
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
        new = set(ids) - known
        if new:
            given[number] = keep_objects(mask, new)
            known |= new
            begun.append(
                f'{path}: {"object" if len(new) == 1 else "objects"} {", ".join(map(str, sorted(new)))} from '
                f'frame {clip.name(number)} on'
            )
    if not (given or faults):
        faults = [f'{path}: shows no object' for path, _ in paths.values()]
    _raise_for(faults, 'the masks')
    print_log('\n'.join(begun), 'current')
    return given


def _claim(out_dir: Path, settings: dict[str, Any], overwrite: bool) -> None:
    """Make the folder one of a run with these settings; raise a ValueError if it is of another one."""
    record, masks = out_dir / 'run.json', out_dir / 'masks'
    text = json.dumps(settings, indent=2, default=str)
    if record.exists():
        try:
            earlier = json.loads(record.read_text())
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
            f'{masks} holds files, and there is no {record.name} beside it to say of which run; choose another folder'
        )
    masks.mkdir(parents=True, exist_ok=True)
    for part in masks.glob('.*.part'):  # of a run that was killed
        part.unlink()
    aside = record.with_name(f'.{record.name}.part')
    aside.write_text(text)
    os.replace(aside, record)


def _raise_for(faults: list[str], where: str) -> None:
    if faults:
        raise ValueError(
            f'{len(faults)} {"fault" if len(faults) == 1 else "faults"} in {where}:'
            + ''.join(f'\n  {fault}' for fault in faults)
        )


def _digest(parts: Iterable[Any]) -> str:
    """Return the SHA-256 of parts that are bytes or contiguous arrays."""
    digest = sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _peak_memory(device: torch.device) -> float:
    """Return the most memory so far, in MiB: on a GPU of this call's tensors, else of the whole process."""
    if device.type == 'cuda':
        return torch.cuda.max_memory_allocated(device) / MIB
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (MIB if sys.platform == 'darwin' else 1024)
