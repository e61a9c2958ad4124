"""Inference on video files and folders of frames of any length: one index mask per frame, and an overlay video."""

import json
import logging
import resource
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.logging import print_log
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mmattn._compat import load_weights
from mmattn.engine import (  # registers 'mmattn::…'
    fuse_at_first_call,
    guard_checkpoints,
    inference_precision,
    read_checkpoint,
)
from mmattn.registry import MODELS
from mmattn.utils.component_type import check_model
from mmattn.utils.devices import check_device
from mmattn.utils.faults import reading
from mmattn.utils.files import check_path, check_writable, exclusive, remove_temporary_files, write_text
from mmattn.utils.paths import config_path
from mmattn.utils.resumable import check_same_run

from .backbone_weights import load_backbone
from .clip_readers import Clip, open_clip
from .given_masks import Masks, find_masks, read_masks
from .label_propagation import LabelPropagation
from .masks import PALETTE, draw_overlay, read_mask, read_palette, write_mask
from .overlay import check_overlay, open_overlay
from .session import ClipSession, Frame
from .sst import SST

MIB = 2**20
DEFAULT_CONFIG = 'label_propagation/label-propagation_mobilenet-v2-d8_davis-240p.py'
Show = Callable[[np.ndarray, np.ndarray], None]  # a frame and its ids
DARK = 64  # objects whose colour is darker are drawn in the colour of DAVIS


class VOSInferencer:
    """Follow objects through clips of any length, given one mask per object. Memory does not grow with the length.

    Attributes:
        summary (str): frames per second and peak memory of the last call.

    Args:
        model (str, Path or Config, optional): config of an :class:`~mmattn.video.SST` or a
            :class:`~mmattn.video.LabelPropagation`, or its path. Defaults to the shipped label propagation, which needs
            no training.
        weights (str, optional): path or URL of the checkpoint. With None, label propagation loads the weights that the
            config's backbone names in ``init_cfg``, and an SST keeps its random initial weights, for trials.
        device (str, optional): for example 'cpu' or 'cuda:1'. Defaults to a GPU if there is one.
        show_progress (bool): show a progress bar. Defaults to True.
        amp (bool): use mixed precision, see :func:`~mmattn.engine.inference_precision`. Defaults to False.
        fuse_conv_bn (bool): fold batch norms, see :func:`~mmattn.engine.fuse_at_first_call`. Defaults to False.

    Raises:
        OSError: the config or the checkpoint does not exist, or weights cannot be downloaded.
        RuntimeError: the checkpoint does not fit the model. The message lists the keys.

    Example::

        paths = VOSInferencer()('clip.mp4', 'first.png', out_dir='followed')

        follow = VOSInferencer('configs/sst/sst-grid_r18-d8-half_1xb4-400_davis-240p.py', 'iter_400.pth')
        paths = follow('clip.mp4', 'first.png', out_dir='followed')
    """

    def __init__(
        self,
        model: str | Path | Config | None = None,
        weights: str | Path | None = None,
        device: str | None = None,
        show_progress: bool = True,
        amp: bool = False,
        fuse_conv_bn: bool = False,
    ) -> None:
        guard_checkpoints()
        self.device = check_device(device)
        self.cfg = model if isinstance(model, Config) else Config.fromfile(model or config_path(DEFAULT_CONFIG))
        self.show_progress = show_progress
        self.summary = ''
        check_model(self.cfg, (SST, LabelPropagation), 'an SST or a LabelPropagation')
        self.model = MODELS.build(self.cfg.model)
        if weights is not None:
            load_weights(self.model, read_checkpoint(weights), weights)
        elif isinstance(self.model, LabelPropagation):
            load_backbone(self.model.backbone, self.cfg.model.backbone)
        else:
            print_log('weights is None: the model is not trained', 'current', logging.WARNING)
        state = self.model.state_dict()
        self._settings = dict(
            config=self.cfg.model.to_dict(),
            weights=weights and str(weights),
            weights_sha256=_digest(x.reshape(-1).view(torch.uint8).numpy() for x in state.values()),
            amp=amp,
        )
        self.model.to(self.device).eval()
        if fuse_conv_bn:
            fuse_at_first_call(self.model)
        self._precision = inference_precision(self.device, amp=amp)

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
        references: str = 'last',
        frame_order: str | None = None,
        allow_gaps: bool = False,
    ) -> list[Path]:
        """Write ``masks/<frame>.png`` for each frame, and ``overlay.mp4``, to ``out_dir``.

        A mask is a palette PNG whose indices are the object ids. Frames of a video file are named by a five-digit index
        that starts at 00000. Colours are those of the first given mask with a palette, or of DAVIS. The masks of a part
        of the clip are written when the model has processed the part. All writes are atomic. If you repeat the call
        after an interruption, parts whose masks all exist are skipped. ``run.json`` records input and settings. The
        file ``.lock`` keeps other runs out of the folder. The overlay has a constant frame rate.

        Args:
            video (str or Path): a video file or a folder of frames.
            masks (str, Path, or sequence of str or Path): palette or grey images in a lossless format whose values are
                the ids of the objects to follow, or folders of such images. A mask belongs to a frame as follows:

                * ``<path>@20`` belongs to frame 20.
                * A mask with exactly the name of a frame belongs to that frame.
                * Of several masks, or in a folder, a mask whose name is a number belongs to the frame with this number.
                * If one number varies in the names of a folder of several masks, it is the number of the frame.
                * One mask with any other name belongs to the first frame.

                A later mask of an object corrects it. A mask says nothing about objects that it does not show.
            out_dir (str or Path): folder, which is created if necessary.
            max_frames (int, optional): number of frames that the model processes at once, including reference frames,
                at least 2. None means all. It replaces ``max_frames`` in ``test_cfg`` of the config, and the frames are
                always consecutive. Defaults to 16.
            overlay (bool): write the overlay video, see :func:`~mmattn.video.draw_overlay`. Defaults to True.
            opacity (float): opacity of the overlay's colours, 0 to 1. Defaults to 0.5.
            single_object (bool): masks have two values, of which the higher one is object 1: pixels that are not
                transparent or, without transparency, not 0 or black. Defaults to False: values are ids, and 255 is
                void.
            overwrite (bool): first remove the results of another run from ``out_dir``. Defaults to False.
            references (str): which masks of an object count in a frame, 'last', 'nearest' or 'all', as in
                :class:`~mmattn.video.ClipSession`. With the latter two, objects are also followed backwards. Defaults
                to 'last'.
            frame_order (str, optional): how to read the names of frames, 'numbers', 'decimals', 'signed' or 'text', see
                :func:`~mmattn.video.frame_names.sort_frames`. Defaults to None: numbers, with a warning if another
                order is possible.
            allow_gaps (bool): allow frame numbers with unequal steps in a folder. In the overlay, a gap takes no time.
                Defaults to False.

        Returns:
            list of Path: the masks, in the order of the frames.

        Raises:
            FileNotFoundError: the video does not exist.
            BlockingIOError: another run uses ``out_dir``.
            ValueError: frames are missing, unreadable or of different sizes, a mask does not fit the frames, or
                ``out_dir`` holds the input, the results of another run, or other files of these names. All this is
                checked before the model runs, except that a video may end before the frame of a mask. The message lists
                the files.
            OSError: ``out_dir`` is not writable, no overlay of this size can be written, or a file cannot be written
                completely. The error names the file.
        """
        if not 0 <= opacity <= 1:
            raise ValueError(f'opacity must be from 0 to 1; got {opacity}')
        given_settings = dict(max_frames=max_frames, sampling='dense', references=references)
        session = ClipSession(self.model, **{**self.model.test_cfg, **given_settings})
        out_dir = check_path('out_dir', out_dir)
        folder, overlay_path = out_dir / 'masks', out_dir / 'overlay.mp4'
        check_writable(out_dir)
        check_writable(folder)
        clip = open_clip(video, frame_order, allow_gaps)
        paths = find_masks(clip, masks)
        given = read_masks(paths, clip, single_object)
        palette = _palette(path for path, _ in paths.values())
        inputs = {path.resolve() for path in (*clip.files, *(path for path, _ in paths.values()))}
        outputs = {folder.resolve(), overlay_path.resolve()}
        if outputs & (inputs | {path.parent for path in inputs}):
            raise ValueError(f'{out_dir} holds frames or masks of the input; choose another out_dir')
        if overlay:
            check_overlay(overlay_path, clip.size, clip.frame_rate)
        settings = dict(
            video=str(clip.path.resolve()),
            files_sha256=_digest(
                f'{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}\n'.encode() for path in clip.files
            ),
            masks_sha256={str(number): _digest([mask]) for number, mask in given.items()},
            palette_sha256=_digest([palette]),
            max_frames=max_frames,
            references=references,
            **self._settings,
        )
        with exclusive(out_dir), self._precision:
            _claim(out_dir, settings, overwrite, overlay)
            if references != 'last':  # masks also count in earlier frames
                for number, image in clip.read():
                    if number in given:
                        session.add(Frame(number, image, given[number]))
                    if number == max(given):
                        break
            drawn = np.where(palette.max(1, keepdims=True) < DARK, PALETTE, palette)
            with open_overlay(overlay_path, clip.size, clip.frame_rate) if overlay else nullcontext() as writer:

                def show(image: np.ndarray, ids: np.ndarray) -> None:
                    if writer is not None:
                        writer.write(draw_overlay(image, ids, opacity, drawn))

                return self._segment(session, clip, given, folder, palette, show)

    def _segment(
        self,
        session: ClipSession,
        clip: Clip,
        given: dict[int, np.ndarray],
        folder: Path,
        palette: np.ndarray,
        show: Show,
    ) -> list[Path]:
        written: dict[int, Path] = {}

        def frames() -> Iterator[Frame]:
            for number, image in clip.read():
                written[number] = folder / f'{clip.name(number)}.png'
                yield Frame(number, image, None if number in session else given.get(number))

        def known(numbers: list[int]) -> list[np.ndarray] | None:
            if not all(written[number].exists() for number in numbers):
                return None
            return [_read_result(written[number]) for number in numbers]

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
            start, count = perf_counter(), 0
            self.summary = 'no frame left to segment'
            for frame, ids in session.segment(frames(), known, clip.step):
                if not written[frame.number].exists():
                    write_mask(written[frame.number], ids, palette)
                    count += 1
                    self.summary = (
                        f'{count / (perf_counter() - start):.2f} frames per second, peak memory '
                        f'{_peak_memory(self.device):.0f} MiB'
                    )
                progress.update(task, advance=1, summary=self.summary)
                show(frame.image, ids)
        beyond = given.keys() - written.keys()
        if beyond:
            whole = len(written) if clip.length is None else f'{len(written)} of {clip.length} announced'
            raise ValueError(
                f'{clip.path}: only {whole} frames can be decoded, but a mask is given for frame {min(beyond)}'
            )
        if clip.length is not None and len(written) < clip.length:
            print_log(
                f'{clip.path}: {len(written)} frames can be decoded; the file announces {clip.length}, in WebM and '
                'Matroska an estimate',
                'current',
                logging.WARNING,
            )
        return list(written.values())


def _read_result(path: Path) -> np.ndarray:
    try:
        return read_mask(path)
    except ValueError as error:
        raise ValueError(f'{error}; delete it, and run the same command again') from error


def _palette(masks: Iterable[Path]) -> np.ndarray:
    """Read the palette of the first mask that has one."""
    palettes = (read_palette(path) for path in masks)
    return next((palette for palette in palettes if (palette != PALETTE).any()), PALETTE)


def _claim(out_dir: Path, settings: dict[str, Any], overwrite: bool, overlay: bool) -> None:
    """Prepare the locked output folder, unless it holds the results of a run with other settings, or other files.

    The masks themselves say which frames are finished, so the folder needs no further record.
    """
    record, masks = out_dir / 'run.json', out_dir / 'masks'
    outputs = [masks, *[out_dir / 'overlay.mp4'] * overlay]
    if record.exists():
        with reading(record, 'not the settings of a run'):
            earlier = dict(json.loads(record.read_text(encoding='utf-8')))
        if not overwrite:
            check_same_run(record, earlier, settings, 'choose another folder, or set overwrite=True (--overwrite)')
        else:
            for path in (*masks.glob('*.png'), out_dir / 'overlay.mp4'):
                path.unlink(missing_ok=True)
    elif foreign := [path for path in outputs if path.is_file() or (path.is_dir() and any(path.iterdir()))]:
        raise ValueError(
            f'{foreign[0]} would be replaced, and there is no {record.name} next to it that records its run; choose '
            'another folder'
        )
    masks.mkdir(parents=True, exist_ok=True)
    for folder in (out_dir, masks):
        remove_temporary_files(folder)  # left by a killed run
    write_text(record, json.dumps(settings, indent=2, default=str))


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
