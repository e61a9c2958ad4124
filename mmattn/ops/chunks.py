"""How the reference operators keep their extra memory bounded: one slice of the work at a time, from a byte budget."""

from collections.abc import Iterator

CHUNK_BYTES = 64 * 2**20


def chunks(length: int, bytes_each: int) -> Iterator[slice]:
    """Yield slices that cover ``range(length)``, each with at most ``CHUNK_BYTES`` of ``bytes_each``, or one item."""
    step = max(1, CHUNK_BYTES // max(1, bytes_each))
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))
