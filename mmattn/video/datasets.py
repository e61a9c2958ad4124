"""Data sets of clips: a folder of frames and masks, DAVIS 2016 and 2017, YouTube-VOS 2018 and 2019."""

import logging
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

from mmengine.dataset import BaseDataset
from mmengine.fileio import load
from mmengine.logging import print_log

from mmattn.registry import DATASETS

from .clip_files import find_faults, find_files, find_gaps
from .masks import object_ids, read_mask

THREADS = 4  # more would wait for Python's lock


@DATASETS.register_module()
class VideoFolderDataset(BaseDataset):
    """Clips as folders of frames, with masks at any frames: all, the first one, or wherever an object begins.

    ``JPEGImages/<clip>/<frame>.jpg`` goes with ``Annotations/<clip>/<frame>.png``, whose values are the objects' ids;
    a mask for every frame is not needed. Frames in ``JPEGImages`` itself are one clip, called as the folder. An
    object is given at the first mask that shows it, and what later masks say of it is ground truth.

    An item, before the pipeline, is a clip: a dict of

    * ``clip`` (str): its name;
    * ``frame_paths`` (list of str), ``mask_paths`` (list of str or None): of each frame; None where there is no mask;
    * ``frame_numbers`` (list of int): the numbers in the frames' names less that of the first frame, or 0, 1, … if
      the names do not end in numbers;
    * ``given_positions`` (list of int): of the frames, ascending, whose masks may show new objects;
    * ``output_positions`` (list of int): of the frames, ascending, whose predictions are wanted;
    * ``single_object`` (bool): as the argument;
    * ``categories`` (dict): id → name, of the objects whose category is known;
    * ``sample_idx`` (int).

    Args:
        ann_file (str): text file with the clips' names, one a line. Defaults to none: all folders.
        data_prefix (dict): ``img_path`` and ``mask_path``, the folders of frames and masks. Defaults to 'JPEGImages'
            and 'Annotations'.
        single_object (bool): everything but 0 is object 1, as in DAVIS 2016, whose masks are 0 and 255. Defaults to
            False.
        allow_gaps (bool): the numbers of frames need not follow one another in equal steps. Defaults to False.
        check_files (bool): look at every file, which decodes a mask or two a clip. Defaults to True.
        **kwargs: ``data_root``, ``pipeline``, ``test_mode`` and so on, as in mmengine's ``BaseDataset``.

    Raises:
        FileNotFoundError: there is no such list or folder.
        ValueError: files are missing, in excess, unreadable, cut short, or of another size than the clip's first
            frame, or a clip has no object; the message names them all.
    """

    def __init__(
        self,
        ann_file: str = '',
        data_prefix: dict = dict(img_path='JPEGImages', mask_path='Annotations'),
        single_object: bool = False,
        allow_gaps: bool = False,
        check_files: bool = True,
        **kwargs,
    ) -> None:
        self.single_object = single_object
        self.allow_gaps = allow_gaps
        self.check_files = check_files
        super().__init__(ann_file=ann_file, data_prefix=data_prefix, **kwargs)

    def load_data_list(self) -> list[dict]:
        """Find the files of all clips, and look at them."""
        frames, masks = (Path(self.data_prefix[key]) for key in ('img_path', 'mask_path'))
        if not frames.is_dir():
            raise FileNotFoundError(f'no folder {frames}')
        names = self._clip_names(frames)
        faults: list[str] = []
        clips = [self._clip(name or frames.name, frames / name, masks / name, faults) for name in names]
        if self.check_files:
            with ThreadPool(THREADS) as pool:
                faults += (fault for found in pool.imap(self._look, clips) for fault in found)
        if not names:
            faults.append(f'{self.ann_file}: names no clip')
        if faults:
            raise ValueError(f'{type(self).__name__}: {len(faults)} faults in its files:\n' + '\n'.join(faults))
        if (
            not self.test_mode
            and any(len(clip['frame_paths']) > 1 for clip in clips)
            and all(sum(path is not None for path in clip['mask_paths']) == 1 for clip in clips)
        ):
            print_log(
                f'{type(self).__name__}: no clip has masks of two frames; in training, each clip is one frame repeated',
                'current',
                logging.WARNING,
            )
        return clips

    def _clip_names(self, frames: Path) -> list[str]:
        """Return the names of the clips; '' is the folder itself."""
        if not self.ann_file:
            return sorted(p.name for p in frames.iterdir() if p.is_dir() and not p.name.startswith('.')) or ['']
        # DAVIS 2016 as it first came has '/JPEGImages/480p/bear/00000.jpg /Annotations/480p/bear/00000.png'
        lines = filter(None, map(str.strip, Path(self.ann_file).read_text(encoding='utf-8-sig').splitlines()))
        return list(dict.fromkeys(line.split()[0].split('/')[-2] if '/' in line else line for line in lines))

    def _clip(self, name: str, frames: Path, masks: Path, faults: list[str]) -> dict:
        """Return a clip's item, and append what is wrong with its files to ``faults``."""
        found, numbers, mask_of, wrong = find_files(frames, masks)
        faults += wrong
        if not self.allow_gaps:
            faults += find_gaps(found, numbers)
        clip = dict(
            clip=name,
            frame_paths=list(map(str, found)),
            mask_paths=[mask and str(mask) for mask in mask_of],
            frame_numbers=numbers,
            given_positions=[i for i, mask in enumerate(mask_of) if mask],
            output_positions=list(range(len(found))),
            single_object=self.single_object,
            categories={},
        )
        if found and not clip['given_positions']:
            faults.append(f'{masks}: no mask for any frame of {frames}')
        return clip

    def _look(self, clip: dict[str, Any]) -> list[str]:
        """Return what is wrong with a clip's files, of which the first mask with an object is decoded."""
        faults = list(find_faults([*map(Path, clip['frame_paths'])], [*map(Path, filter(None, clip['mask_paths']))]))
        given = [clip['mask_paths'][i] for i in clip['given_positions'] if clip['mask_paths'][i]]
        if not faults and given:
            try:
                if not any(object_ids(read_mask(path, self.single_object)) for path in given):
                    faults.append(
                        f'{given[0]}: shows no object (255 is void); for a mask of 0 and 255 set single_object=True'
                        if len(given) == 1
                        else f'{given[0]} … {Path(given[-1]).name}: {len(given)} masks without an object'
                    )
            except ValueError as error:
                faults.append(str(error))
        return faults


@DATASETS.register_module()
class DAVISDataset(VideoFolderDataset):
    """DAVIS 2017, or 2016 with ``single_object=True``; the objects are those of the first frame.

    ``ImageSets/2017/val.txt`` lists the clips of ``JPEGImages/480p`` and ``Annotations/480p``. Items are as
    :class:`VideoFolderDataset`'s.

    Args:
        ann_file (str): list of clips.
        resolution (str): the folder of frames, and of masks. Defaults to '480p'.
        **kwargs: as in :class:`VideoFolderDataset`.

    Raises:
        FileNotFoundError, ValueError: as in :class:`VideoFolderDataset`; a first frame without a mask is a fault, too.
    """

    def __init__(self, ann_file: str, resolution: str = '480p', **kwargs) -> None:
        prefix = dict(img_path=f'JPEGImages/{resolution}', mask_path=f'Annotations/{resolution}')
        super().__init__(ann_file=ann_file, data_prefix=kwargs.pop('data_prefix', prefix), **kwargs)

    def _clip(self, name: str, frames: Path, masks: Path, faults: list[str]) -> dict:
        clip = super()._clip(name, frames, masks, faults)
        if clip['given_positions'] and clip['given_positions'][0] != 0:
            faults.append(f'{masks}: no mask for the first frame, {Path(clip["frame_paths"][0]).name}')
        clip['given_positions'] = clip['given_positions'][:1]
        return clip


@DATASETS.register_module()
class YouTubeVOSDataset(VideoFolderDataset):
    """YouTube-VOS 2018 or 2019: every fifth frame has a mask, objects begin in the middle of a clip.

    ``data_root`` is the folder of a split, with ``JPEGImages``, ``Annotations`` and ``meta.json``; ``img_path`` may
    lead to the frames of the ``*_all_frames`` archives, as only those in ``meta.json`` are wanted of a prediction.
    Items are as :class:`VideoFolderDataset`'s. ``metainfo['seen_categories']`` are the categories of ``seen``.

    Args:
        ann_file (str): ``videos.<clip>.objects.<id>.{category, frames}``. Defaults to 'meta.json'.
        seen (str, optional): the training split's ``meta.json``, relative to ``data_root``: its categories are seen,
            all others unseen. Defaults to None: not told apart.
        **kwargs: as in :class:`VideoFolderDataset`.

    Raises:
        FileNotFoundError, ValueError: as in :class:`VideoFolderDataset`; a frame of ``meta.json`` that is missing, and
            one at which an object begins without a mask, are faults, too. An object that no such mask shows is only
            named in the log.
    """

    def __init__(self, ann_file: str = 'meta.json', seen: str | None = None, **kwargs) -> None:
        self.seen = seen
        super().__init__(ann_file=ann_file, **{'allow_gaps': True, **kwargs})

    def load_data_list(self) -> list[dict]:
        """Find the files of all clips, and look at them."""
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

    def _look(self, clip: dict[str, Any]) -> list[str]:
        faults = super()._look(clip)
        given = [clip['mask_paths'][i] for i in clip['given_positions']]
        if not faults and all(given):  # a missing one is a fault already
            try:
                shown = {i for path in given for i in object_ids(read_mask(path, self.single_object))}
            except ValueError as error:
                return [str(error)]
            lost = [i for i, thing in self._videos[clip['clip']]['objects'].items() if int(i) not in shown]
            unknown = shown - {*map(int, self._videos[clip['clip']]['objects'])}
            if unknown and not self.single_object:
                print_log(
                    f'{clip["clip"]}: masks show {", ".join(map(str, sorted(unknown)))}, not in {self.ann_file}; these '
                    'objects are followed and scored, too',
                    'current',
                    logging.WARNING,
                )
            if lost and not self.single_object:
                print_log(
                    f'{clip["clip"]}: no mask at which an object begins shows {", ".join(lost)} of {self.ann_file}; '
                    'these objects are not followed',
                    'current',
                    logging.WARNING,
                )
        return faults

    def _clip(self, name: str, frames: Path, masks: Path, faults: list[str]) -> dict:
        clip = super()._clip(name, frames, masks, faults)
        objects = self._videos[name]['objects']
        position = {Path(path).stem: i for i, path in enumerate(clip['frame_paths'])}
        wanted = sorted({frame for thing in objects.values() for frame in thing['frames']})
        begins = sorted({min(thing['frames'], key=_order) for thing in objects.values() if thing['frames']})
        faults += (
            f'{frames / frame}.jpg: no such frame, but {self.ann_file} names it'
            for frame in wanted
            if position and frame not in position
        )
        faults += (
            f'{masks / frame}.png: no such mask, but an object begins there'
            for frame in begins
            if frame in position and not clip['mask_paths'][position[frame]]
        )
        clip.update(
            given_positions=[position[frame] for frame in begins if frame in position],
            output_positions=[position[frame] for frame in wanted if frame in position],
            categories={int(i): thing['category'] for i, thing in objects.items() if 'category' in thing},
        )
        return clip


def _order(frame: str) -> tuple[int, str]:
    """Return what frames, whose names are numbers, are ordered by."""
    return len(frame), frame


def _videos(path: str | Path) -> dict[str, dict]:
    """Return the clips in a ``meta.json``.

    Raises:
        FileNotFoundError, ValueError: there is no such file, or it is not of this kind; the message names it.
    """
    try:
        videos = load(path)['videos']
        for video in videos.values():
            for i, thing in video['objects'].items():
                int(i), thing['frames']
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f'{path}: must hold videos.<clip>.objects.<id>.frames; {error!r}') from error
    return videos
