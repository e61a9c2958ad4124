"""Triton's cache as prepare.sh carries it to another machine: its keys and paths are of no machine."""

import json
import os

import triton
from triton import knobs
from triton.runtime import cache


class CarriedCache(cache.FileCacheManager):
    """Finds the files of a kernel beside the list of them, which has the paths of the machine that compiled it."""

    def get_group(self, filename: str) -> dict[str, str] | None:
        path = self.get_file(f'__grp__{filename}')
        if path is None:
            return None
        with open(path, encoding='utf-8') as file:
            names = json.load(file)['child_paths']
        return {name: self._make_path(name) for name in names if os.path.exists(self._make_path(name))}


def install() -> None:
    # Triton's own key has a hash of its shared library, of which each version of Python has another.
    cache.triton_key = lambda: triton.__version__
    knobs.cache.manager_class = CarriedCache
