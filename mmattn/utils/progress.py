"""Progress of long work: a bar on a terminal, and a line now and then in a log."""

import io
import sys
from collections.abc import Iterable, Iterator, Sized
from time import monotonic
from typing import TypeVar

SECONDS = 10.0  # between two lines
T = TypeVar('T')


class SlowLines(io.TextIOBase):
    """Stream for a progress bar in a log. Writes its latest text after ``title`` to stderr, at most every 10 seconds.

    Example:
        >>> stream = SlowLines('Converting: ')
        >>> stream.write('1 of 3')  # 10 seconds later, it would write 'Converting: 1 of 3'
        6
    """

    def __init__(self, title: str = '') -> None:
        self.title, self.stream, self.next = title, sys.stderr, monotonic() + SECONDS

    def write(self, text: str) -> int:
        """Write the text as a line, or skip it."""
        line = text.strip()
        if line and monotonic() >= self.next:
            print(f'{self.title}{line}', file=self.stream, flush=True)
            self.next = monotonic() + SECONDS
        return len(text)


def track(items: Iterable[T], title: str, total: int | None = None) -> Iterator[T]:
    """Yield items, and show with ``title`` how many are done. ``total`` defaults to the length of ``items``.

    Example:
        >>> [*track('ab', 'Converting')]
        ['a', 'b']
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import track as bar

        yield from bar(items, title, total, console=Console(stderr=True))
        return
    stream = SlowLines(f'{title}: ')
    for number, item in enumerate(items):
        stream.write(f'{number:,}' if total is None else f'{number:,} of {total:,}')
        yield item
