"""Print pip's settings as environment variables of uv, for ``eval`` in a shell: ``python uv_settings.py``.

uv then uses the indexes, wheel folders, constraints and certificates that pip uses. Variables that are set remain.
"""

import argparse
import os
import shlex
import subprocess
import sys

# Setting of pip → variable of uv, and what separates several values.
VARIABLES = {
    'index-url': ('UV_DEFAULT_INDEX', ' '),
    'extra-index-url': ('UV_INDEX', ' '),
    'find-links': ('UV_FIND_LINKS', ','),
    'constraint': ('UV_CONSTRAINT', ' '),
    'cert': ('SSL_CERT_FILE', ' '),
    'trusted-host': ('UV_INSECURE_HOST', ' '),
    'no-index': ('UV_NO_INDEX', ' '),
}
SECTIONS = ('global', 'install', ':env:')  # the last one that sets a value counts


def main() -> None:
    argparse.ArgumentParser(description="Print pip's settings as environment variables of uv.").parse_args()
    command = [sys.executable, '-m', 'pip', 'config', 'list']
    listed = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    values = dict(line.split('=', 1) for line in listed if '=' in line)
    for setting, (variable, separator) in VARIABLES.items():
        settings = [values[f'{section}.{setting}'] for section in SECTIONS if f'{section}.{setting}' in values]
        if settings and variable not in os.environ:
            words = settings[-1][1:-1].replace('\\n', ' ').split()
            print(f'export {variable}={shlex.quote(separator.join(words))}')


if __name__ == '__main__':
    main()
