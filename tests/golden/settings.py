"""Prints the settings of a resolved config, a line each. To see what changed where a digest of ``configs.txt`` differs:

git worktree add ../before HEAD
diff <(python -m tests.golden.settings ../before/configs/NAME) <(python -m tests.golden.settings configs/NAME)
"""

import hashlib
import json
import sys

from mmengine.config import Config


def settings(value, key=''):
    """Yield lines ``a.b.0.c = value``: a value is JSON, a list of dicts is numbered."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    if value and (isinstance(value, dict) or any(isinstance(child, dict | list | tuple) for _, child in children)):
        for name, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from settings(child, f'{key}.{name}' if key else str(name))
    else:
        yield f'{key} = {json.dumps(value, ensure_ascii=False)}'


def digest(lines):
    return hashlib.sha256('\n'.join(sorted(lines)).encode()).hexdigest()[:16]


if __name__ == '__main__':
    print(*sorted(settings(Config.fromfile(sys.argv[1]).to_dict())), sep='\n')
