"""The order of frames by their names, in which natsort puts them, and the numbers in the names."""

import re
from collections.abc import Sequence
from functools import cache
from logging import WARNING
from pathlib import Path
from typing import NamedTuple

from mmengine.logging import print_log

from mmattn.utils.checks import check_choice
from mmattn.utils.faults import shorten
from mmattn.utils.optional import import_optional

READINGS = 'numbers', 'decimals', 'signed', 'text'
SHOWN = 8  # names in a message


class Names(NamedTuple):
    """Frames in order. ``numbers`` are those in the names, or positions if the names do not differ in one integer."""

    paths: list[Path]
    numbers: list[int]
    are_numbered: bool  # the names hold these numbers


def sort_frames(paths: Sequence[Path], reading: str | None = None) -> Names:
    """Sort the frames of a clip by their names, and number them.

    If the numbers in the names can also be decimals or have signs, or the names, of one length, also be sorted as text,
    and the order would be another one, the log warns.

    Args:
        paths (sequence of Path): the frames, in any order.
        reading (str, optional): what the names contain. 'numbers' are integers, with or without zeros in front.
            'decimals' have digits after a point, and 'signed' ones a sign in front. 'text' is sorted by characters.
            Defaults to None: 'numbers', with the warning.

    Raises:
        ImportError: natsort is not installed.

    Example:
        >>> [path.name for path in sort_frames([Path('img9.png'), Path('img10.png'), Path('img1.png')]).paths]
        ['img1.png', 'img9.png', 'img10.png']
    """
    if reading is not None:
        check_choice('frame_order', reading, READINGS)
    if not paths:
        return Names([], [], are_numbered=False)
    paths = sorted(paths, key=str)
    stems = [path.stem for path in paths]
    chosen = reading or 'numbers'
    ordered = _sort(paths, chosen)
    if reading is None:
        possible = ['decimals'] * any('.' in stem for stem in stems)
        possible += ['signed'] * (len({stem.count('-') for stem in stems}) > 1)  # else a minus is a hyphen
        possible += ['text'] * (len({*map(len, stems)}) == 1)
        others = [other for other in possible if _sort(paths, other) != ordered]
        if others:
            _warn(paths[0].parent, ', '.join(shorten([path.name for path in ordered], SHOWN)), ' or '.join(others))
    numbers = _numbers([path.stem for path in ordered]) if chosen == 'numbers' else None
    return Names(ordered, numbers or [*range(len(ordered))], are_numbered=numbers is not None)


def _sort(paths: list[Path], reading: str) -> list[Path]:
    if reading == 'text':
        return sorted(paths, key=lambda path: path.stem)
    natsort = import_optional('natsort', 'video')
    algorithms = dict(numbers=natsort.ns.INT, decimals=natsort.ns.FLOAT, signed=natsort.ns.REAL)
    return natsort.natsorted(paths, key=lambda path: path.stem, alg=algorithms[reading])


@cache  # once a folder
def _warn(folder: Path, order: str, others: str) -> None:
    print_log(
        f'{folder}: the numbers in the names of the frames are read as integers, and the order is {order}. It would be '
        f'another one as {others}: choose with frame_order (--frame-order)',
        'current',
        WARNING,
    )


def _numbers(stems: Sequence[str]) -> list[int] | None:
    """Read the only integer that varies, or the last if none does. None if more varies than one integer."""
    parts = [re.split(r'(\d+)', stem) for stem in stems]
    if len({tuple(name[::2]) for name in parts}) > 1 or len(parts[0]) == 1:
        return None
    columns = [[*map(int, column)] for column in zip(*(name[1::2] for name in parts))]
    varying = [column for column in columns if len({*column}) > 1] or columns[-1:]
    return varying[0] if len(varying) == 1 else None
