"""What the image files promise that needs no engine to see; ``docker/prove.sh`` builds and runs one."""

import re
from pathlib import Path

import mmattn

ROOT = Path(__file__).parents[1]
CPU, CUDA = ((ROOT / 'docker' / name).read_text() for name in ('Dockerfile.cpu', 'Dockerfile'))
LINE = re.compile('^# -{20,}$', re.MULTILINE)


def test_both_files_make_the_same_image_on_their_bases():
    (of_cpu, steps), (of_cuda, same_steps) = LINE.split(CPU), LINE.split(CUDA)
    assert steps == same_steps
    assert re.search(r'^FROM debian:bookworm-\d{8}-slim\nENV MMATTN_ACCELERATOR=cpu$', of_cpu, re.MULTILINE)
    assert re.search(r'^FROM nvidia/cuda:[\d.]+-devel-\S+\nENV MMATTN_ACCELERATOR=cuda ', of_cuda, re.MULTILINE)
    assert re.search(r'image\.version="(.+?)"', steps).group(1) == mmattn.__version__


def test_code_is_copied_after_mmcv_is_built():
    instructions = re.findall(r'^(?:COPY (.+)|RUN .*?(\w+\.sh).*)$', CPU, re.MULTILINE)
    environment = 'tools/environment/ tools/environment/'
    assert instructions == [(environment, ''), ('', 'dependencies.sh'), ('. .', ''), ('', 'setup.sh')]


def test_nothing_that_git_ignores_travels():
    def names(file: str) -> set[str]:
        lines = (ROOT / file).read_text().splitlines()
        return {line.removeprefix('**/').rstrip('/') for line in lines if line and not line.startswith('#')}

    assert names('.gitignore') <= names('.dockerignore')
