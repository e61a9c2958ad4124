"""Command lines from signatures: what each annotation accepts, what the help says, and which words are errors."""

import re
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest

from mmattn.utils.arguments import UsageError, command


@dataclass
class Shared:
    """What two commands have.

    Args:
        folder: where the images are
        names (NAME): what is read; 50 % of it is enough
    """

    folder: Path
    _: KW_ONLY
    names: list[str] | None = None


@dataclass
class More(Shared):
    """What one of them adds.

    Args:
        out: where results go
    """

    _: KW_ONLY
    out: Annotated[Path, 'is in the docstring'] = Path('here')

    def __post_init__(self):
        if self.out == self.folder:
            raise UsageError('--out must not be the folder')


@command
def sample(
    number: int,
    shared: More,
    word: str = 'none',
    *,
    scale: float,
    kind: Literal['a', 'b'] = 'a',
    quick: bool = False,
    cased: bool | None = None,
    size: tuple[int, int] = (4, 0),
    points: Annotated[list[float], 'pixels', dict(action='append', nargs=None)] = [],
    level: int = 0,
):
    """Draw a ``sample``::

        sample.py 3 images

    Args:
        scale (S): how much
            larger.
        quick: no pauses
    """
    return dict(locals())


def test_every_annotation_is_parsed():
    assert sample(['3', 'images', '--scale', '2']) == dict(
        number=3,
        shared=More(Path('images'), names=None, out=Path('here')),
        word='none',
        scale=2.0,
        kind='a',
        quick=False,
        cased=None,
        size=(4, 0),
        points=[],
        level=0,
    )
    words = '7 images x --scale 1e3 --kind b --quick --no-cased --size 5 6 --points 1 --points 2 --names y z --out o'
    changed = sample(words.split())
    assert changed == dict(
        number=7,
        shared=More(Path('images'), names=['y', 'z'], out=Path('o')),
        word='x',
        scale=1000.0,
        kind='b',
        quick=True,
        cased=False,
        size=[5, 6],
        points=[1.0, 2.0],
        level=0,
    )


@pytest.mark.parametrize(
    ('words', 'said'),
    [
        ('three images --scale 1', "argument number: invalid int value: 'three'"),
        ('3 --scale 1', 'the following arguments are required: folder'),
        ('3 images', 'the following arguments are required: --scale'),
        ('3 images --scale 1 --kind c', "argument --kind: invalid choice: 'c'"),
        ('3 images --scale 1 --size 5', 'argument --size: expected 2 arguments'),
        ('3 images --scale 1 --names', 'argument --names: expected at least one argument'),
        ('3 images --scale 1 --out images', '--out must not be the folder'),
    ],
)
def test_what_does_not_fit_is_an_error_of_usage(capsys, words, said):
    with pytest.raises(SystemExit) as exit:
        sample(words.split())
    assert exit.value.code == 2
    usage, message = capsys.readouterr().err.rsplit('error: ', 1)
    assert usage.startswith('usage: ')
    assert message.startswith(said)


def test_the_help_is_the_docstring(capsys):
    with pytest.raises(SystemExit):
        sample(['--help'])
    text = capsys.readouterr().out
    lines = {line.split()[0]: ' '.join(line.split()) for line in re.split(r'\n(?=  -?\S)', text) if line.split()}
    assert '\nDraw a sample:\n\n    sample.py 3 images\n\n' in text
    assert lines['folder'].endswith('folder where the images are')
    assert lines['--names'].endswith('--names NAME [NAME ...] what is read; 50 % of it is enough')
    assert lines['--out'].endswith('--out OUT where results go; default: here')
    assert lines['--scale'].endswith('--scale S how much larger')
    assert lines['--quick'].endswith('--quick no pauses')
    assert lines['--points'].endswith('--points POINTS pixels')
    assert lines['--size'].endswith('default: 4 0')
    assert lines['--level'].endswith('default: 0')  # a 0 is not False


def test_a_text_of_an_argument_that_is_gone_is_an_error():
    def tool(*, images: Path):
        """Read images.

        Args:
            folder: where the images are
        """

    with pytest.raises(TypeError, match=r"tool.*'folder'"):
        command(tool)(['--images', 'x'])
