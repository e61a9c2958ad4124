"""Names of pictures; tests of tools/test.py cover the drawing."""

from pathlib import Path

import pytest

from mmattn.visualization import picture_names


@pytest.mark.parametrize(
    ('paths', 'names'),
    [
        ([], []),
        (['val/a.jpg'], ['a.png']),
        (['val/a.jpg', 'val/b.png', 'val/a.jpg'], ['a.png', 'b.png', 'a.png']),
        (['/d/val/bonn/bonn_1.png', '/d/val/ulm/ulm_1.png'], ['bonn_1.png', 'ulm_1.png']),
        (['/d/val/bonn/1.png', '/d/val/ulm/1.png', '/d/val/2.png'], ['bonn/1.png', 'ulm/1.png', '2.png']),
        (['a/1.png', 'b/1.png'], ['a/1.png', 'b/1.png']),
        ([str(Path('a/1.png').absolute()), 'b/1.png', 'b/2.png'], ['a/1.png', 'b/1.png', 'b/2.png']),
        (['val/a.jpg', 'val/a.png', 'val/b.png'], ['a.jpg.png', 'a.png.png', 'b.png.png']),
    ],
)
def test_names_are_as_short_as_all_can_differ(paths, names):
    assert [picture_names(paths)[path] for path in paths] == names
