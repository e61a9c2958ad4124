"""What the image files promise that needs no engine to see; ``docker/prove.sh`` builds and runs one."""

import os
import re
import subprocess
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


def test_an_unknown_accelerator_is_an_error_before_any_work(tmp_path):
    folder = tmp_path / 'tools/environment'
    folder.mkdir(parents=True)
    for name in 'dependencies.sh', 'steps.sh', 'lock.txt':
        (folder / name).write_text((ROOT / 'tools/environment' / name).read_text())
    done = subprocess.run(
        ['bash', folder / 'dependencies.sh'],
        env={**os.environ, 'MMATTN_ACCELERATOR': 'gpu'},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr == "[mmattn] error: MMATTN_ACCELERATOR is 'gpu': set it to cpu or cuda\n"
    assert not (tmp_path / '.venv').exists()
