"""A disk that is full, for this process and without root."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Let no file grow beyond ``size`` bytes: a write beyond fails with EFBIG, as one to a full disk with ENOSPC.

    Python ignores SIGXFSZ, which would end another process.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
