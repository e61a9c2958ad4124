"""Read the masks that a user gives, and assign them to frames and objects."""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from mmengine.logging import print_log

from mmattn.utils.faults import Faults
from mmattn.utils.files import check_path

from .clip_readers import Clip, split_number
from .frame_files import find_images
from .frame_names import sort_frames
from .masks import black_objects, doubtful_ids, object_ids, read_mask, read_single_object

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
        before, digits = split_number(entry)
        if Path(entry).is_dir():
            files, numbers, are_numbered = sort_frames([*find_images(Path(entry))])
            listed += (_MaskFile(file, '', alone=False) for file in files)
            numbered |= dict(zip(files, numbers)) if are_numbered and len(files) > 1 else {}
        else:
            listed.append(_MaskFile(Path(before), digits, alone=True))
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
    faults = Faults()
    for mask in listed:
        path = mask.path
        try:
            number = find_frame(mask)
        except ValueError as error:
            faults.add(path, str(error))
            continue
        if number is None and (unnumbered or not (mask.alone or len(listed) == 1)):
            faults.add(
                path, f'its frame is unknown; name it like its frame, or append @ and the number: {path.name}@20'
            )
            continue
        if number is None:
            unnumbered, number = path, 0
        if number in by_frame:
            faults.add(
                path,
                f'belongs to the same frame as {by_frame[number][0]}; a frame has one mask, in which each '
                'object has its own id',
            )
        by_frame.setdefault(number, (path, mask.alone))
    faults.check()
    return dict(sorted(by_frame.items()))


def read_masks(paths: dict[int, tuple[Path, bool]], clip: Clip, single_object: bool) -> dict[int, np.ndarray]:
    """Read the masks that show an object: uint8 ``(H, W)``, by frame number. Faults of all masks are listed."""
    masks: dict[int, np.ndarray] = {}
    earlier: set[int] = set()
    begun, faults = [], Faults()
    corrected: dict[int, list[tuple[Path, bool]]] = {}
    for number, (path, alone) in paths.items():
        try:
            mask = read_single_object(path) if single_object else read_mask(path)
        except FileNotFoundError:
            faults.add(path, f'no such file{_spelling(path)}')
            continue
        except (OSError, ValueError) as error:
            faults.add('', str(error))
            continue
        ids = object_ids(mask)
        if mask.shape != clip.size:
            faults.add(
                path,
                f'{mask.shape[1]}×{mask.shape[0]}; the frames of {clip.path} are '
                f'{clip.size[1]}×{clip.size[0]} (width×height)',
            )
        elif alone and not ids:
            is_void = not single_object and read_mask(path, single_object=True).any()
            hint = '; 255 is void: for a mask of 0 and 255 set single_object=True (--single-object)' if is_void else ''
            faults.add(path, f'shows no object{hint}')
        new = [i for i in ids if i not in earlier]
        if ids:
            masks[number] = mask
        for i in earlier.intersection(ids):
            corrected.setdefault(i, []).append((path, alone))
        earlier.update(ids)
        if new:
            begun.append(
                f'{path}: {"object" if len(new) == 1 else "objects"} {", ".join(map(str, new))} from '
                f'frame {clip.name(number)} on'
            )
        fault, warnings = _doubts(path, mask, new, single_object)
        if fault:
            faults.add(path, fault)
        for warning in warnings:
            print_log(f'{path}: {warning}', 'current', logging.WARNING)
    if not (masks or faults):
        for path, _ in paths.values():
            faults.add(path, 'shows no object')
    faults.check()
    print_log('\n'.join(begun), 'current')
    for i, files in sorted(corrected.items()):
        (first, _), (last, _) = files[0], files[-1]
        more = f' and {len(files) - 1} more masks, up to {last.name}' if len(files) > 1 else ''
        meant = all(alone for _, alone in files)  # named by the user, not found in a folder
        print_log(f'{first}{more}: object {i} is corrected', 'current', logging.INFO if meant else logging.WARNING)
    return masks


def _doubts(path: Path, mask: np.ndarray, new: Sequence[int], single_object: bool) -> tuple[str, list[str]]:
    """Look for ids that the user may not mean. Returns a fault, '' if there is none, and warnings."""
    if single_object:
        corners = bool(mask[:: len(mask) - 1 or 1, :: mask.shape[1] - 1 or 1].all())
        return '', ['all corners belong to the object; the background must be the lower value, such as black'] * corners
    fault, warning = doubtful_ids(path)
    warnings = [warning] if warning and not fault else []
    if black := black_objects(path):
        warnings.append(
            f'object {black[0]} is black, and id 0, the background, has a colour; check that the background has id 0'
        )
    if len(new) > MANY_OBJECTS:
        warnings.append(f'{len(new)} objects; every value except 0 and 255 is one, also on smoothed edges')
    return fault, warnings


def _spelling(path: Path) -> str:
    """Hint at the right spelling of ``mask@20.png`` and ``mask.png@last``."""
    stem, _, number = path.stem.rpartition('@')
    if stem and number.isdecimal():
        return f'; frame {number} is written {stem}{path.suffix}@{number}'
    return '; after @, write the number of a frame, such as @20' if '@' in path.suffix else ''
