"""Data sets of clips: a folder of frames and masks, DAVIS 2016 and 2017, YouTube-VOS 2018 and 2019."""

import logging
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, TypedDict

from mmengine.dataset import BaseDataset
from mmengine.fileio import load
from mmengine.logging import print_log
from typing_extensions import Unpack

from mmattn.registry import DATASETS
from mmattn.utils.faults import Faults, reading, shorten

from .frame_files import check_frames, check_gaps, find_files
from .masks import VOID, doubtful_ids, object_ids, read_mask

THREADS = 4  # more threads would wait for the global interpreter lock


class FolderOptions(TypedDict, total=False):
    """The options of mmengine's ``BaseDataset`` that data sets of clips pass on."""

    metainfo: Mapping[str, Any] | None
    data_root: str | None
    filter_cfg: dict | None
    indices: int | Sequence[int] | None
    serialize_data: bool
    pipeline: list[dict | Callable]
    test_mode: bool
    lazy_init: bool
    max_refetch: int


class VideoOptions(FolderOptions, total=False):
    """The options that :class:`DAVISDataset` and :class:`YouTubeVOSDataset` pass on."""

    data_prefix: dict
    single_object: bool
    frame_order: str | None
    check_files: bool


@DATASETS.register_module()
class VideoFolderDataset(BaseDataset):
    """Load clips from folders of frames and masks. Any frame may have a mask.

    ``JPEGImages/<clip>/<frame>.jpg`` belongs to ``Annotations/<clip>/<frame>.png``, whose values are the ids of the
    objects. Frames directly in ``JPEGImages`` are one clip, named after the folder. An object begins at the first frame
    whose mask shows it. This mask is given to the model. Later masks are ground truth.

    Before the pipeline, an item is a dict with

    * ``clip`` (str): name of the clip.
    * ``frame_paths`` (list of str), ``mask_paths`` (list of str or None): one per frame. None stands for no mask.
    * ``frame_numbers`` (list of int): the numbers in the frame names, counted from the first frame. They are 0, 1, … if
      the names are not in regular steps.
    * ``given_positions`` (list of int): ascending positions of the frames whose masks may show new objects.
    * ``output_positions`` (list of int): ascending positions of the frames that need a prediction.
    * ``unscored_positions`` (list of int): positions of the frames whose masks need not show all objects, so that they
      are no ground truth.
    * ``single_object`` (bool): the argument.
    * ``categories`` (dict): category names by object id, where the data set names a category.
    * ``sample_idx`` (int): index of the item.

    Args:
        ann_file (str): text file with one clip name per line. Defaults to '', all folders.
        data_prefix (dict): folders of frames and masks. Defaults to ``img_path='JPEGImages', mask_path='Annotations'``.
        single_object (bool): make all values except 0 object 1, as in DAVIS 2016, whose masks hold 0 and 255. Defaults
            to False.
        allow_gaps (bool): allow frame numbers with unequal steps. Defaults to False.
        frame_order (str, optional): how to read the names of frames, 'numbers', 'decimals', 'signed' or 'text', see
            :func:`~mmattn.video.frame_names.sort_frames`. Defaults to None: numbers, with a warning if another order is
            possible.
        check_files (bool): check every file, which decodes a few masks per clip. Defaults to True.
        **kwargs: ``data_root``, ``pipeline``, ``test_mode`` and so on, as in mmengine's ``BaseDataset``.

    Raises:
        FileNotFoundError: ``ann_file`` or the folder of the frames does not exist.
        ValueError: files are missing, superfluous, unreadable, truncated or of different sizes, or a clip has no
            object. The message lists all such files.

    Example:
        >>> import numpy as np
        >>> from mmattn.video import write_mask
        >>> for name in ('00000', '00001'):
        ...     write_mask(f'Annotations/cat/{name}.png', np.eye(4, dtype=np.uint8))
        ...     write_mask(f'JPEGImages/cat/{name}.png', np.zeros((4, 4), np.uint8))
        >>> dataset = VideoFolderDataset()
        >>> dataset[0]['clip'], dataset[0]['frame_numbers']
        ('cat', [0, 1])
    """

    def __init__(
        self,
        ann_file: str = '',
        data_prefix: dict = dict(img_path='JPEGImages', mask_path='Annotations'),
        single_object: bool = False,
        allow_gaps: bool = False,
        frame_order: str | None = None,
        check_files: bool = True,
        **kwargs: Unpack[FolderOptions],
    ) -> None:
        self.single_object = single_object
        self.allow_gaps = allow_gaps
        self.frame_order = frame_order
        self.check_files = check_files
        super().__init__(ann_file=ann_file, data_prefix=data_prefix, **kwargs)

    def load_data_list(self) -> list[dict]:
        """Find and check the files of all clips."""
        frames, masks = (Path(self.data_prefix[key]) for key in ('img_path', 'mask_path'))
        if not frames.is_dir():
            raise FileNotFoundError(f'no folder {frames}')
        names = self._clip_names(frames)
        faults = Faults()
        clips = [self._clip(name or frames.name, frames / name, masks / name, faults) for name in names]
        if self.check_files:
            with ThreadPool(THREADS) as pool:
                for clip_faults in pool.imap(self._check, clips):
                    faults.include(clip_faults)
        if not names:
            faults.add(self.ann_file, 'lists no clip')
        warnings = [clip.pop('warning') for clip in clips if 'warning' in clip]
        faults.check()
        if warnings:
            print_log('\n'.join([f'{type(self).__name__}:', *shorten(warnings)]), 'current', logging.WARNING)
        if (
            not self.test_mode
            and any(len(clip['frame_paths']) > 1 for clip in clips)
            and all(sum(path is not None for path in clip['mask_paths']) == 1 for clip in clips)
        ):
            print_log(
                f'{type(self).__name__}: no clip has more than one mask; in training, each clip is one frame repeated',
                'current',
                logging.WARNING,
            )
        return clips

    def _clip_names(self, frames: Path) -> list[str]:
        if not self.ann_file:  # '' stands for the folder itself
            return sorted(p.name for p in frames.iterdir() if p.is_dir() and not p.name.startswith('.')) or ['']
        # a line in the first release of DAVIS 2016: '/JPEGImages/480p/bear/00000.jpg /Annotations/480p/bear/00000.png'
        with reading(self.ann_file, 'not a list of clips'):
            lines = filter(None, map(str.strip, Path(self.ann_file).read_text(encoding='utf-8-sig').splitlines()))
        return list(dict.fromkeys(line.split()[0].split('/')[-2] if '/' in line else line for line in lines))

    def _clip(self, name: str, frames: Path, masks: Path, faults: Faults) -> dict:
        frame_paths, numbers, mask_paths = find_files(frames, masks, self.frame_order, faults)
        if not self.allow_gaps:
            check_gaps(frame_paths, numbers, faults)
        clip = dict(
            clip=name,
            frame_paths=list(map(str, frame_paths)),
            mask_paths=[path and str(path) for path in mask_paths],
            frame_numbers=numbers,
            given_positions=[i for i, path in enumerate(mask_paths) if path],
            output_positions=list(range(len(frame_paths))),
            unscored_positions=[],
            single_object=self.single_object,
            categories={},
        )
        if frame_paths and not clip['given_positions']:
            faults.add(masks, f'no mask for any frame of {frames}')
        return clip

    def _check(self, clip: dict[str, Any]) -> Faults:
        faults = Faults()
        check_frames([*map(Path, clip['frame_paths'])], [*map(Path, filter(None, clip['mask_paths']))], faults)
        masks = [clip['mask_paths'][i] for i in clip['given_positions'] if clip['mask_paths'][i]]
        if not faults and masks:
            with faults.catch():  # masks are decoded up to the first one that shows an object
                shown = next((path for path in masks if object_ids(read_mask(path, self.single_object))), None)
                fault, warning = ('', '') if self.single_object or shown is None else doubtful_ids(shown)
                if fault:
                    faults.add(shown, fault)
                if warning:
                    clip['warning'] = f'{shown}: {warning}'
                if shown is None:
                    faults.add(
                        masks[0],
                        'shows no object (255 is void); for a mask of 0 and 255 set single_object=True'
                        if len(masks) == 1
                        else f'to {Path(masks[-1]).name}: {len(masks)} masks without an object',
                    )
        return faults


@DATASETS.register_module()
class DAVISDataset(VideoFolderDataset):
    """Load DAVIS 2017, or DAVIS 2016 with ``single_object=True``. The mask of the first frame shows all objects.

    For example, ``ImageSets/2017/val.txt`` lists clips in ``JPEGImages/480p`` and ``Annotations/480p``. Items, errors
    and further arguments: see :class:`VideoFolderDataset`.

    Args:
        ann_file (str): list of clips.
        resolution (str): name of the folders of frames and masks. Defaults to '480p'.
        **kwargs: as in :class:`VideoFolderDataset`, with ``data_prefix`` for folders of other names.

    Example:
        >>> import numpy as np
        >>> from mmattn.video import write_mask
        >>> for folder in ('JPEGImages', 'Annotations'):
        ...     for name in ('00000', '00001'):
        ...         write_mask(f'DAVIS/{folder}/480p/bear/{name}.png', np.eye(4, dtype=np.uint8))
        >>> _ = Path('DAVIS/val.txt').write_text('bear', encoding='utf-8')
        >>> dataset = DAVISDataset('val.txt', data_root='DAVIS')
        >>> dataset[0]['given_positions']
        [0]
    """

    def __init__(
        self, ann_file: str, resolution: str = '480p', allow_gaps: bool = False, **kwargs: Unpack[VideoOptions]
    ) -> None:
        kwargs.setdefault(
            'data_prefix', dict(img_path=f'JPEGImages/{resolution}', mask_path=f'Annotations/{resolution}')
        )
        super().__init__(ann_file=ann_file, allow_gaps=allow_gaps, **kwargs)

    def _clip(self, name: str, frames: Path, masks: Path, faults: Faults) -> dict:
        clip = super()._clip(name, frames, masks, faults)
        if clip['given_positions'] and clip['given_positions'][0] != 0:
            faults.add(masks, f'no mask for the first frame, {Path(clip["frame_paths"][0]).name}')
        clip['given_positions'] = clip['given_positions'][:1]
        return clip


@DATASETS.register_module()
class YouTubeVOSDataset(VideoFolderDataset):
    """Load YouTube-VOS 2018 or 2019. Every fifth frame has a mask, and objects may begin in the middle of a clip.

    ``data_root`` is the folder of a split, with ``JPEGImages``, ``Annotations`` and ``meta.json``. ``img_path`` may be
    the frame folder of a ``*_all_frames`` archive. Then only the frames in ``meta.json`` need a prediction.
    ``metainfo['seen_categories']`` lists the categories of ``seen``. Items, errors and further arguments: see
    :class:`VideoFolderDataset`. It is also an error if a frame in ``meta.json`` or the mask at which an object begins
    is missing. An object that this mask does not show only causes a warning.

    Args:
        ann_file (str): JSON file of ``videos.<clip>.objects.<id>.{category, frames}``. Defaults to 'meta.json'.
        seen (str, optional): ``meta.json`` of the training split, relative to ``data_root``. Its categories are seen,
            all other categories unseen. Defaults to None: categories are not distinguished.
        allow_gaps (bool): allow frame numbers with unequal steps. Defaults to True.
        **kwargs: as in :class:`VideoFolderDataset`.

    Example:
        >>> import numpy as np
        >>> from mmattn.video import write_mask
        >>> for folder in ('JPEGImages', 'Annotations'):
        ...     for name in ('00000', '00005'):
        ...         write_mask(f'train/{folder}/0a/{name}.png', np.eye(4, dtype=np.uint8))
        >>> objects = {'1': dict(category='cat', frames=['00000', '00005'])}
        >>> from mmengine.fileio import dump
        >>> dump({'videos': {'0a': {'objects': objects}}}, 'train/meta.json')
        >>> YouTubeVOSDataset(data_root='train')[0]['categories']
        {1: 'cat'}
    """

    def __init__(
        self,
        ann_file: str = 'meta.json',
        seen: str | None = None,
        allow_gaps: bool = True,
        **kwargs: Unpack[VideoOptions],
    ) -> None:
        self.seen = seen
        super().__init__(ann_file=ann_file, allow_gaps=allow_gaps, **kwargs)

    def load_data_list(self) -> list[dict]:
        """Find and check the files of all clips."""
        self._videos = _videos(self.ann_file)
        if self.seen is not None:
            path = Path(self.data_root or '', self.seen)
            self._metainfo['seen_categories'] = sorted(
                {
                    thing['category']
                    for video in _videos(path).values()
                    for thing in video['objects'].values()
                    if 'category' in thing
                }
            )
        try:
            return super().load_data_list()
        finally:
            del self._videos

    def _clip_names(self, frames: Path) -> list[str]:
        return list(self._videos)

    def _check(self, clip: dict[str, Any]) -> Faults:
        faults = super()._check(clip)
        masks = [clip['mask_paths'][i] for i in clip['given_positions']]
        if not faults and all(masks):  # a missing mask is already reported
            shown: set[int] = set()
            with faults.catch():
                shown.update(i for path in masks for i in object_ids(read_mask(path, self.single_object)))
            if faults:
                return faults
            lost = [i for i, thing in self._videos[clip['clip']]['objects'].items() if int(i) not in shown]
            unknown = shown - {*map(int, self._videos[clip['clip']]['objects'])}
            for ids, text in (
                (sorted(unknown), 'in masks are not in {}; they are followed and scored, too'),
                (lost, 'of {} are in no mask of a frame at which an object begins; they are not followed'),
            ):
                if ids and not self.single_object:
                    names = ', '.join(map(str, ids))
                    message = f'{clip["clip"]}: objects {names} {text.format(self.ann_file)}'
                    print_log(message, 'current', logging.WARNING)
        return faults

    def _clip(self, name: str, frames: Path, masks: Path, faults: Faults) -> dict:
        clip = super()._clip(name, frames, masks, faults)
        objects = self._videos[name]['objects']
        position = {Path(path).stem: i for i, path in enumerate(clip['frame_paths'])}
        listed = sorted({frame for thing in objects.values() for frame in thing['frames']}, key=_order)
        begins = sorted({min(thing['frames'], key=_order) for thing in objects.values() if thing['frames']}, key=_order)
        for frame in listed:
            if position and frame not in position:
                faults.add(f'{frames / frame}.jpg', f'no such frame, but {self.ann_file} lists it')
        for frame in begins:
            if frame in position and not clip['mask_paths'][position[frame]]:
                faults.add(f'{masks / frame}.png', 'no such mask, but an object begins at this frame')
        given = [position[frame] for frame in begins if frame in position]
        clip.update(
            given_positions=given,
            unscored_positions=given,
            output_positions=[position[frame] for frame in listed if frame in position],
            categories={int(i): thing['category'] for i, thing in objects.items() if 'category' in thing},
        )
        return clip


def _order(frame: str) -> tuple[int, str]:
    return len(frame), frame  # sorts names by number


def _videos(path: str | Path) -> dict[str, dict]:
    with reading(path, 'must hold videos.<clip>.objects.<id>.{category, frames}'):
        videos = load(path)['videos']
        for name, video in videos.items():
            if not name:
                raise ValueError('a clip without a name')
            for i, thing in video['objects'].items():
                texts = [*thing['frames'], thing.get('category', '')]
                if not (0 < int(i) < VOID and isinstance(thing['frames'], list) and all(map(_is_text, texts))):
                    raise ValueError(f'{thing!r:.80} of object {i!r:.20} of {name}')
    return videos


def _is_text(value: object) -> bool:
    return isinstance(value, str)
