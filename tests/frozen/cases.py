"""Cases of a zip file: a config, files, and what is expected. Files of the same content are stored once."""

import ast
import zipfile
from pathlib import Path

FOLDER = Path(__file__).parent


class Cases:
    """Cases by name. ``ROOT`` in a config stands for the folder into which the files of a case are written."""

    def __init__(self, name):
        self.zip = zipfile.ZipFile(FOLDER / name)
        self.cases = ast.literal_eval(self.zip.read('cases.txt').decode())  # configs have tuples

    def write(self, name, folder):
        """Write the files of a case, and return it with the folder in place of ``ROOT``."""
        for path, (kind, *content) in self.cases[name]['files'].items():
            path = Path(folder, path)
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == 'folder':
                path.mkdir(exist_ok=True)
            elif kind == 'link':
                path.symlink_to(content[0].replace('ROOT', str(folder)))
            else:
                path.write_bytes(self.zip.read(content[0]))
        case = {key: value for key, value in self.cases[name].items() if key != 'files'}
        return ast.literal_eval(repr(case).replace('ROOT', str(folder)))
