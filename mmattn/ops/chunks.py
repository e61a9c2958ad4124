"""How the reference operators keep their extra memory bounded: one slice of the work at a time, from a byte budget."""

from collections.abc import Iterator

CHUNK_BYTES = 64 * 2**20


def chunks(length: int, bytes_each: int, budget: int | None = None) -> Iterator[slice]:
    """Yield slices that cover ``range(length)``: each of one item, or of as many as the budget has room for.

    Args:
        length (int): the number of items.
        bytes_each (int): bytes of memory that an item needs.
        budget (int, optional): bytes of memory of a slice. Defaults to ``CHUNK_BYTES``.
    """
    step = max(1, (CHUNK_BYTES if budget is None else budget) // max(1, bytes_each))
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))
