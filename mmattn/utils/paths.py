"""The location of the configs of this installation."""

from pathlib import Path


def config_path(name: str = '') -> Path:
    """Return the path of a config, or the folder of all configs.

    It works for an installed wheel (``mmattn/.mim/configs``) and for a source checkout, editable or not.

    Args:
        name (str): path relative to ``configs``, for example ``bi_cc/bi-cc_r50-d8_4xb2-80k_cityscapes-769x769.py``.

    Raises:
        FileNotFoundError: the config does not exist; the message lists the files in its folder.

    Example:
        >>> config_path('bi_cc/metafile.yml').name
        'metafile.yml'
    """
    package = Path(__file__).resolve().parents[1]
    roots = (package / '.mim' / 'configs', package.parent / 'configs')
    root = next((root for root in roots if root.is_dir()), roots[0])
    path = root / name
    if not path.exists():
        folder = path.parent if path.parent.is_dir() else root
        known = ', '.join(sorted(entry.name for entry in folder.iterdir())) if folder.is_dir() else 'nothing'
        raise FileNotFoundError(f"no config '{name}' in {root}; {folder} holds {known}")
    return path
