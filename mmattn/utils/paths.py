"""Paths of the configs of this installation."""

from pathlib import Path


def config_path(name: str = '') -> Path:
    """Find a config of an installed wheel or a source checkout.

    Args:
        name (str): path relative to ``configs``. Defaults to '', the folder of all configs.

    Raises:
        FileNotFoundError: the config does not exist. The message lists the configs in its folder.

    Example:
        >>> config_path('bi_cc/bi-cc_r50-d8_4xb2-80k_cityscapes-769x769.py').parent.name
        'bi_cc'
    """
    package = Path(__file__).resolve().parents[1]
    roots = (package / '.mim' / 'configs', package.parent / 'configs')
    root = next((root for root in roots if root.is_dir()), roots[0])
    path = root / name
    if not path.exists():
        folder = path.parent if path.parent.is_dir() else root
        names = ', '.join(sorted(entry.name for entry in folder.iterdir())) if folder.is_dir() else 'nothing'
        raise FileNotFoundError(f"no config '{name}' in {root}; {folder} contains {names}")
    return path
