"""The sources of the native kernels, as a build takes them."""

from collections import Counter
from pathlib import Path

import mmattn

CSRC = Path(mmattn.__file__).parent / 'ops' / 'csrc'


def test_no_two_sources_have_one_object():
    """A build names the object of a source after its folder and its name, without what follows the dot."""
    objects = Counter(path.with_suffix('') for path in CSRC.rglob('*') if path.suffix in ('.cpp', '.cu'))
    assert [path for path, count in objects.items() if count > 1] == []
