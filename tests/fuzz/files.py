"""Changes files at random, and gives them to the package."""

import shutil

from .children import LOADED, answer, answers
from .mutate import change, generator

ATTEMPTS = 9


class Mutants:
    """The changed files of a kind, by number."""

    def __init__(self, name, kind, folder, seed):
        self.name, self.kind, self.folder, self.seed = name, kind, folder, seed
        kind.write(folder)
        self.sound = {path: path.read_bytes() for path in sorted(folder.rglob('*')) if path.is_file()}
        self.folders = {path for path in folder.rglob('*') if path.is_dir()}
        self.changed = [path for path in sorted(folder.glob(kind.changed)) if self.sound.get(path)]
        paths = {*self.sound, *self.folders}
        self.names = sorted({part for path in paths for part in (path.name, path.stem) if len(part) > 2})

    def restore(self):
        for path in sorted(self.folder.rglob('*'), reverse=True):
            if path.is_dir() and not path.is_symlink():
                if path not in self.folders:
                    shutil.rmtree(path)
            elif path not in self.sound:
                path.unlink()
        for path, data in self.sound.items():
            if not path.is_file() or path.read_bytes() != data:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)

    def __call__(self, number):
        self.restore()
        rng = generator(self.seed, self.name, number)
        path = rng.choice(self.changed)
        data, what = self.sound[path], ''
        for _ in range(ATTEMPTS):
            if data == self.sound[path]:
                data, what = change(rng, path.name, self.sound[path])
        path.write_bytes(data)
        found, said = answer(lambda: self.kind.read(self.folder), self.names)
        return found, said[:400], f'{path.relative_to(self.folder)}: {what}'

    def sound_answer(self, number):
        self.restore()
        return *answer(lambda: self.kind.read(self.folder), []), ''


def run(name, kind, count, seed, folder):
    """Yield the answer, the text and the change of each mutant. The files as they are must load."""
    mutants = Mutants(name, kind, folder, seed)
    ((_, (found, said, _)),) = answers(mutants.sound_answer, 1)
    assert found == LOADED, f'the files as they are: {found}: {said}'
    for _, (found, said, what) in answers(mutants, count):
        yield found, said, what
