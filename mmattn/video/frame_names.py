"""The order of frames, and their numbers, from their names: what differs between the names counts."""

import re
from calendar import month_name
from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal
from functools import cache, reduce
from itertools import pairwise, takewhile
from logging import INFO, WARNING
from pathlib import Path
from string import ascii_lowercase, hexdigits
from typing import NamedTuple

from mmengine.logging import print_log

INTEGER = r'(?:(?<![^\W_])[-+−])?\d+'  # a sign stands at the start or behind a mark, as in frame_-2
SIGNED = r'[-+−]?\d+'
DECIMAL = rf'(?<!\d[.,]){INTEGER}(?:[.,]\d+)?(?:e[-+]\d+)?(?![.,]\d)'
UNDERSCORE = rf'{INTEGER}(?:_\d+)?'
MONTH = re.compile('|'.join(rf'(?<![a-z])({name[:3]})(?:{name[3:]})?(?![a-z])' for name in month_name[1:]), re.I)
CLOCK = re.compile(r'(?<!\d)(\d{1,2})((?:\D\d\d){0,2})[ _-]?([ap])\.?m(?![a-z])', re.I)
DATE = re.compile(r'(?<!\d)(\d{1,2})([^\w]?|_)(\d{1,2})\2((?:19|20)\d\d)(?!\d)')
GROUPS = re.compile(r"(?<=\d)[,. _'](?=\d{3}(?!\d))")
SPARSE = 10  # letters are digits if at least one of so many numbers is there
SHOWN = 8  # names in a message
FEW = 4  # with fewer frames, equal steps may be chance
Keys = list[list]  # of each name: text and numbers in turn


class Names(NamedTuple):
    """Frames in order. ``numbers`` are those in the names, or positions if the names are not in regular steps."""

    paths: list[Path]
    numbers: list[int]
    are_numbered: bool  # the names hold these numbers


def sort_frames(paths: Sequence[Path], reading: str | None = None) -> Names:
    """Sort the frames of a clip by their names, and number them.

    The names may differ in integers, with or without zeros in front, decimals, signs, letters, hexadecimal numbers, or
    dates and times. If they can be read in several ways with different orders, the reading with the fewest gaps between
    the frames wins, and the log shows the order.

    Args:
        paths (sequence of Path): the frames, in any order.
        reading (str, optional): how to read the names, a key of :data:`READINGS`. Defaults to None, by the names.

    Raises:
        ValueError: the names cannot be read in this way.

    Example:
        >>> [path.name for path in sort_frames([Path('0.2.png'), Path('0.16.png'), Path('0.24.png')]).paths]
        ['0.16.png', '0.2.png', '0.24.png']
    """
    if reading not in (None, *READINGS):
        raise ValueError(f'frame_order must be one of {", ".join(READINGS)}; got {reading!r}')
    paths = sorted(paths, key=str)
    if not paths:
        return Names([], [], are_numbered=False)
    stems = [path.stem for path in paths]
    keys = {'numbers': _numbers(stems)}
    if reading or len(paths) < FEW or _missing(keys['numbers']):
        keys = {name: found for name, read in READINGS.items() if (found := read(stems)) is not None}
    if reading and reading not in keys:
        raise ValueError(f"frame_order='{reading}': the names cannot be read so, such as {paths[0].name}")
    # what stands before 'numbers' is more probable; what stands behind it must leave no gap
    missing = {name: _missing(found) for name, found in keys.items()}
    common = [*keys][: [*keys].index('numbers') + 1]
    possible = common + [name for name in keys if name not in common and len(paths) >= FEW and not missing[name]]
    chosen = reading or min(possible, key=lambda name: missing[name])
    orders = {name: sorted(range(len(paths)), key=lambda i: keys[name][i]) for name in {*possible, chosen}}
    order, values = orders[chosen], _values(keys[chosen])
    others = [name for name in possible if orders[name] != order]
    if not reading and len(paths) > 1 and (others or values is None):
        names = [paths[i].name for i in order]
        shown = names if len(names) <= SHOWN else [*names[: SHOWN - 1], '…', names[-1]]
        is_clear = not others or (len(paths) >= FEW and not missing[chosen] and all(missing[name] for name in others))
        words = {tuple(key[::2]) for key in keys[chosen]}  # such as months in another language, sorted as text
        level = INFO if is_clear and len(words) == 1 else WARNING
        _say(paths[0].parent, chosen, tuple(others), ', '.join(shown), level)
    paths = [paths[i] for i in order]
    positions = [*range(len(paths))]
    if values is None:
        return Names(paths, positions, are_numbered=False)
    values = [values[i] for i in order]
    if all(value % 1 == 0 for value in values):
        return Names(paths, [*map(int, values)], are_numbered=True)
    step = min(b - a for a, b in pairwise(values))
    if not step or any((value - values[0]) % step for value in values):
        return Names(paths, positions, are_numbered=False)
    return Names(paths, [int((value - values[0]) / step) for value in values], are_numbered=False)


@cache  # once a folder
def _say(folder: Path, reading: str, others: tuple[str, ...], order: str, level: int) -> None:
    text = f'{folder}: the names of the frames are read as {reading}; their order is {order}'
    if others:
        text += f'. They could also be read as {" or ".join(others)}: choose with frame_order (--frame-order)'
    print_log(text, 'current', level)


def _split(names: Sequence[str], pattern: str) -> Keys:
    """Split names into text, without case and marks, and numbers."""

    def number(text: str) -> Decimal | int:
        return int(text) if text.isdecimal() else Decimal(re.sub('[,_]', '.', text).replace('−', '-'))

    text = cache(lambda part: re.sub(r'[\W_]', '', part).casefold())  # most names have the same text
    parts = (re.split(f'({pattern})', name, flags=re.IGNORECASE) for name in names)
    return [[number(part) if i % 2 else text(part) for i, part in enumerate(name)] for name in parts]


def _numbers(names: Sequence[str], pattern: str = INTEGER) -> Keys:
    """Read numbers. Months have numbers, and hours count to 24."""
    if not all(re.fullmatch(r'[\W\d_]*', name) for name in names):
        names = [CLOCK.sub(_hours, MONTH.sub(lambda found: f' {found.lastindex} ', name)) for name in names]
    return _split(names, pattern)


def _hours(found: re.Match) -> str:
    return f'{int(found[1]) % 12 + 12 * (found[3] in "pP"):02}{found[2]}'


def _dates(names: Sequence[str], day: int, month: int) -> Keys | None:
    dated = []
    for name in names:
        name = MONTH.sub(lambda found: f'{found.lastindex:02}', name)
        if not (found := DATE.search(name)):
            return None
        try:
            days = date(int(found[4]), int(found[month]), int(found[day])).toordinal()
        except ValueError:
            return None
        dated.append(f'{name[: found.start()]} {days} {name[found.end() :]}')
    return _numbers(dated)


def _decimals(names: Sequence[str], pattern: str) -> Keys | None:
    """Read decimals, unless a final 0 shows that they are integers: 1.9 is followed by 1.10."""
    ends = {text for name in names for text in re.findall(r'(?<=\d)[.,_](\d+)', name)}
    widths = {*map(len, ends)}
    ends_in_zero = any(len(end) > 1 and end.endswith('0') for end in ends)
    begins_with_zero = any(len(end) > min(widths) and end.startswith('0') for end in ends)
    if len(widths) > 1 and ends_in_zero and not begins_with_zero:
        return None
    keys = _numbers(names, pattern)
    return keys if any(isinstance(part, Decimal) for name in keys for part in name) else None


def _signs_differ(names: Sequence[str]) -> bool:
    return len({len(re.findall('[-−]', name)) for name in names}) > 1


def _digits(names: Sequence[str], digits: str, first: int) -> Keys | None:
    """Read numbers of other digits, whose values count from ``first``: with 1, as for letters, z is followed by aa."""
    words = [word.lower() for word in _differing(names, '' if first else digits + digits.upper())]
    if not all({*word} <= {*digits} and word for word in words) or all(word.isdecimal() for word in words):
        return None
    values = [reduce(lambda value, digit: len(digits) * value + digits.index(digit) + first, word, 0) for word in words]
    return [['', value] for value in values] if max(values) - min(values) < SPARSE * len(values) else None


def _differing(names: Sequence[str], digits: str = '') -> list[str]:
    """Drop what all names begin and end with, but no part of a number."""
    for _ in range(2):  # from the front, and from behind
        equal = sum(1 for _ in takewhile(lambda column: len({*column}) == 1, zip(*names)))
        names = [name[len(names[0][:equal].rstrip(digits)) :][::-1] for name in names]
    return [*names]


READINGS: dict[str, Callable[[Sequence[str]], Keys | None]] = {
    'day first': lambda names: _dates(names, 1, 3),
    'month first': lambda names: _dates(names, 3, 1),
    'letters': lambda names: _digits(names, ascii_lowercase, 1),
    'hexadecimal': lambda names: _digits(names, hexdigits[:16], 0),
    'decimals': lambda names: _decimals(names, DECIMAL),
    'numbers': _numbers,
    'signed': lambda names: _numbers(names, SIGNED) if _signs_differ(names) else None,
    'underscore decimals': lambda names: _decimals(names, UNDERSCORE),
    'grouped digits': lambda names: _numbers([GROUPS.sub('', name) for name in names]),
    'text': lambda names: [[name] for name in names],
}


def _values(keys: Keys) -> list | None:
    """The only number that varies, or the last if none does. None if more varies than one number."""
    if len({*map(len, keys)}) > 1 or len(keys[0]) == 1:
        return None
    columns = [*zip(*keys)]
    varying = [i for i, column in enumerate(columns) if len({*column}) > 1] or [len(columns) // 2 * 2 - 1]
    return list(columns[varying[0]]) if len(varying) == 1 and varying[0] % 2 else None


def _missing(keys: Keys) -> float:
    """Count the frames that are missing between the first and the last one. Infinite for no or equal numbers."""
    values = _values(keys)
    if values is None:
        return float('inf')
    steps = [b - a for a, b in pairwise(sorted(values))]
    if not steps:
        return 0
    return float(sum(steps) / min(steps) - len(steps)) if min(steps) else float('inf')
