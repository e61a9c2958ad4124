"""Every converter makes of its small release the files that it made."""

import gzip
import hashlib
import json
import re
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from PIL import Image

from common import caption_attributes as attributes

from ..contracts.converters import CONVERTERS
from ..contracts.test_converters import Run

PATH = Path(__file__).parent / 'converters.json.gz'
SHORT = 600  # of texts


def digest(array):
    array = np.ascontiguousarray(array)
    return f'{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()[:16]}'


def described(path, folders):
    """What a file holds, however it is encoded: numbers by a digest, short texts as they are."""
    if path.name == 'converted.txt':
        return 'the command'
    if path.suffix in ('.png', '.jpg'):
        with Image.open(path) as image:
            return digest(image)
    if path.suffix == '.npz':
        with np.load(path) as file:
            return {name: digest(file[name]) for name in file.files}
    if path.suffix == '.npy':
        return digest(np.load(path))
    content = gzip.decompress(path.read_bytes()) if path.suffix == '.gz' else path.read_bytes()
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return hashlib.sha256(content).hexdigest()[:16]
    for folder, name in folders.items():
        text = text.replace(str(folder), name)
    text = re.sub(r'\d+ images [0-9a-f]{8}', 'images', text)  # a digest of times
    return text if len(text) < SHORT else f'{len(text)} {hashlib.sha256(text.encode()).hexdigest()[:16]}'


def converted(name, folder):
    run = Run(CONVERTERS[name], folder)
    with patch.object(sys, 'argv', [f'{run.case.script}.py']):  # stores name it
        code, *_ = run()
    assert code == 0
    folders = {run.source: 'RELEASE', run.out: 'OUT', run.root: 'ROOT', folder: 'FOLDER'}
    paths = sorted(path for path in run.root.rglob('*') if path.is_file())
    return {path.relative_to(run.root).as_posix(): described(path, folders) for path in paths}


@pytest.mark.slow
@pytest.mark.parametrize('name', CONVERTERS)
def test_converter(name, tmp_path, monkeypatch):
    monkeypatch.setattr(attributes, 'EPOCHS', 1)  # for time
    frozen = json.loads(gzip.decompress(PATH.read_bytes()))
    if name not in frozen:
        pytest.skip('it required operators of mmcv')
    assert converted(name, tmp_path) == frozen[name]
