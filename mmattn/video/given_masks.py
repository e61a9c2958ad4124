"""Read the masks that a user gives, and assign them to frames and objects."""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from mmengine.logging import print_log

from mmattn.utils.files import check_path

from .clip_readers import Clip
from .frame_files import find_images, natural_order, numbers_in_names, raise_for
from .masks import black_objects, doubtful_ids, keep_objects, object_ids, read_mask

MANY_OBJECTS = 30  # more ids in one mask are probably smoothed edges

Masks = str | Path | Sequence[str | Path]


class _MaskFile(NamedTuple):
    path: Path
    number: str  # after '@', or ''
    alone: bool  # given as a file, not in a folder


def find_masks(clip: Clip, masks: Masks) -> dict[int, tuple[Path, bool]]:
    """Map frame numbers, ascending, to the path of a mask and to whether the user named the file, not its folder."""
    listed: list[_MaskFile] = []
    numbered: dict[Path, int] = {}  # in folders of several masks whose names have one number that varies
    for entry in [masks] if isinstance(masks, str | Path) or not isinstance(masks, Iterable) else masks:
        check_path('masks', entry)
        before, _, digits = str(entry).rpartition('@')
        if Path(entry).is_dir():
            files = sorted(find_images(Path(entry)), key=natural_order)
            listed += (_MaskFile(file, '', False) for file in files)
            numbered |= dict(zip(files, (len(files) > 1 and numbers_in_names(files)) or []))
        elif before and digits.isdecimal():
            listed.append(_MaskFile(Path(before), digits, True))
        else:
            listed.append(_MaskFile(Path(entry), '', True))
    if not listed:
        raise ValueError(f'masks: there is no mask in {masks}')

    def find_frame(mask: _MaskFile) -> int | None:
        if mask.number:
            return clip.find_number(mask.number)
        name = mask.path.stem
        number = clip.find(name)
        if number is None and name.isdecimal() and (len(listed) > 1 or not mask.alone):
            return clip.find_number(name)
        if number is None and mask.path in numbered:
            return clip.find_number(str(numbered[mask.path]))
        return number

    by_frame: dict[int, tuple[Path, bool]] = {}
    unnumbered: Path | None = None
    faults = []
    for mask in listed:
        path = mask.path
        try:
            number = find_frame(mask)
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
        if number in by_frame:
            faults.append(
                f'{path}: belongs to the same frame as {by_frame[number][0]}; a frame has one mask, in which each '
                'object has its own id'
            )
        by_frame.setdefault(number, (path, mask.alone))
    raise_for(faults, 'the masks')
    return dict(sorted(by_frame.items()))


def read_masks(paths: dict[int, tuple[Path, bool]], clip: Clip, single_object: bool) -> dict[int, np.ndarray]:
    """Read the masks of the objects that begin at a frame: uint8 ``(H, W)``, by frame number."""
    new_masks = {}
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
            new_masks[number] = keep_objects(mask, new)
            first_frames.update(dict.fromkeys(new, number))
            begun.append(
                f'{path}: {"object" if len(new) == 1 else "objects"} {", ".join(map(str, new))} from '
                f'frame {clip.name(number)} on'
            )
        fault, warning = ('', '') if single_object else doubtful_ids(path)
        if fault:
            faults.append(f'{path}: {fault}')
            continue
        if warning:
            print_log(f'{path}: {warning}', 'current', logging.WARNING)
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
    if not (new_masks or faults):
        faults = [f'{path}: shows no object' for path, _ in paths.values()]
    raise_for(faults, 'the masks')
    print_log('\n'.join(begun), 'current')
    for i, files in sorted(repeated.items()):
        more = f' and {len(files) - 1} more masks, up to {files[-1].name}' if len(files) > 1 else ''
        message = f'{files[0]}{more}: object {i} is ignored; it begins at frame {clip.name(first_frames[i])}'
        print_log(message, 'current', logging.WARNING)
    return new_masks


def _spelling(path: Path) -> str:
    """Hint at the right spelling of ``mask@20.png`` and ``mask.png@last``."""
    stem, _, number = path.stem.rpartition('@')
    if stem and number.isdecimal():
        return f'; frame {number} is written {stem}{path.suffix}@{number}'
    return '; after @, write the number of a frame, such as @20' if '@' in path.suffix else ''
