"""Where real data sets are, if they are there."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]


def real_data(name, beside=None):
    """Return $NAME_ROOT, which the configs read, or data/NAME, or shared/data/BESIDE next to the checkout."""
    default = ROOT / 'data' / name
    places = default, ROOT.parent / 'shared/data' / (beside or name)
    given = os.environ.get(f'{name.upper()}_ROOT')
    return Path(given) if given else next(filter(Path.is_dir, places), default)


def missing(name, folder):
    """Why a test is skipped."""
    return f'{folder} is not here, and {name.upper()}_ROOT names no other folder'
