"""Labels as annotation tools export them: read here, and written for mmseg and mmdet by ``annotations.py``.

:func:`read` recognises the format by content, and returns pictures with their shapes, whatever the format.
``shapes.py`` has these types and turns shapes into masks; each format has a file of its own; ``layout.py`` finds the
images, the splits and the groups. It imports :mod:`mmattn.utils` alone. Start with ``formats.py``.
"""

from .formats import read
from .shapes import Picture, Shape

__all__ = ['Picture', 'Shape', 'read']
