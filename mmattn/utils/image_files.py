"""Input images of a command, and the files that it writes for them."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from mmengine.logging import print_log
from PIL import Image

from .faults import shorten
from .files import check_path

SUFFIXES = {suffix for suffix, name in Image.registered_extensions().items() if name in Image.OPEN}


def list_images(inputs: str | Path | Sequence[str | Path], suffixes: Collection[str] = SUFFIXES) -> list[str]:
    """List image files: one, several, or those of a folder in the order of their names.

    In a folder, all files with the suffix of an image are listed, except hidden files. Subfolders are not read. The log
    names skipped files. ``suffixes`` are the suffixes of images, by default those that PIL opens.

    Raises:
        ValueError: there is no image.
    """
    if isinstance(inputs, Iterable) and not isinstance(inputs, str | Path | bytes):
        paths = [str(check_path('inputs', path)) for path in inputs]
    elif (folder := check_path('inputs', inputs)).is_dir():
        entries = sorted(path for path in folder.iterdir() if not path.name.startswith('.'))
        # includes folders and broken links that are named like images: they are reported as faults
        paths = [str(path) for path in entries if path.suffix.lower() in suffixes]
        rest = [path.name for path in entries if path.suffix.lower() not in suffixes]
        if rest:
            print_log(f'{inputs}: skipped, no suffix of an image: {", ".join(shorten(rest, 10))}', 'current')
    else:
        paths = [str(inputs)]
    if not paths:
        raise ValueError(f'inputs contain no image; got {inputs}')
    return paths


def check_names(paths: list[str], names: list[str], *folders: Path) -> None:
    """Check that the outputs ``folder / name`` of images are different files, and that none is an input."""
    sources = defaultdict(list)
    for path, name in zip(paths, names):
        sources[name].append(path)
    clashes = [f'{name} from {" and ".join(same)}' for name, same in sources.items() if len(same) > 1]
    if clashes:
        raise ValueError(f'inputs must have distinct names, without suffix and folder:{lines(clashes)}')
    targets = {(folder / name).resolve() for folder in folders for name in names}
    overwritten = [path for path in paths if Path(path).resolve() in targets]
    if overwritten:
        raise ValueError(f'outputs would overwrite inputs; choose another out_dir:{lines(overwritten)}')


def reason(error: Exception) -> str:
    """Describe an error in one line."""
    return ' '.join(str(error).split()) or repr(error)


def lines(items: list[str]) -> str:
    """Format items as indented lines."""
    return ''.join(f'\n  {item}' for item in items)
