"""Progress of long work: a bar on a terminal, and a line now and then in a log."""

import io
import sys
from time import monotonic
from typing import TextIO

SECONDS = 10.0  # between two lines


class SlowLines(io.TextIOBase):
    """Text stream for a progress bar in a log: the latest text becomes a line of ``stream``, at most every 10 s.

    Example:
        >>> from tqdm import tqdm
        >>> for _ in tqdm(range(3), file=SlowLines(sys.stderr)):  # three quick steps write nothing
        ...     pass
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.next = stream, monotonic() + SECONDS

    def write(self, text: str) -> int:
        """Write the text as a line, or skip it."""
        line = text.strip()
        if line and monotonic() >= self.next:
            print(line, file=self.stream, flush=True)
            self.next = monotonic() + SECONDS
        return len(text)


def progress_stream() -> TextIO:
    """Return the stream for progress bars: stderr, or :class:`SlowLines` if stderr is not a terminal."""
    return sys.stderr if sys.stderr.isatty() else SlowLines(sys.stderr)  # type: ignore[return-value]
