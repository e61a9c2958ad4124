"""Every converter makes of its small release the files that it made."""

import gzip
import hashlib
import json
import re
import sys
from pathlib import Path
from unittest.mock import patch

import h5py
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


def stored(path, folders):
    """The arrays of a region store, and its record, as the files of 0.3.0 had them."""
    with h5py.File(path) as file:
        names = [name for name in ('features', 'boxes', 'classes', 'scores') if name in file]
        files = {f'{name}.npy': digest(file[name]) for name in (*names, 'sizes')}
        if '.pth' in file.attrs['source']:  # by a network, whose roundings depend on the processor
            files['features.npy'] = file['features'][()].ravel().tolist()
        files['offsets.npy'] = digest(file['first'])
        files['image_ids.txt'] = shortened(''.join(f'{name}\n' for name in file['names'].asstr()), folders)
        record = dict(version=1, source=file.attrs['source'], dtype=file['features'].dtype.name)
        record.update(num_features=file['features'].shape[1], arrays=names)
    files['store.json'] = shortened(json.dumps(record, indent=4, ensure_ascii=False), folders)
    return files


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
    if path.suffix == '.h5':
        return stored(path, folders)
    if path.suffix == '.npy':
        return digest(np.load(path))
    content = gzip.decompress(path.read_bytes()) if path.suffix == '.gz' else path.read_bytes()
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return hashlib.sha256(content).hexdigest()[:16]
    return shortened(text, folders)


def shortened(text, folders):
    for folder, name in folders.items():
        text = text.replace(str(folder), name)
    text = re.sub(r'\d+ images [0-9a-f]{8}', 'images', text)  # a digest of times
    text = re.sub(r'"mmattn": "[^"]+"', '"mmattn": "VERSION"', text)
    return text if len(text) < SHORT else f'{len(text)} {hashlib.sha256(text.encode()).hexdigest()[:16]}'


def converted(name, folder):
    run = Run(CONVERTERS[name], folder)
    with patch.object(sys, 'argv', [f'{run.case.script}.py']):  # stores name it
        code, *_ = run()
    assert code == 0
    folders = {run.source: 'RELEASE', run.out: 'OUT', run.root: 'ROOT', folder: 'FOLDER'}
    paths = sorted(path for path in run.root.rglob('*') if path.is_file())
    found = {path.relative_to(run.root).as_posix(): described(path, folders) for path in paths}
    for path in [path for path in found if path.endswith('.h5')]:
        found.update({f'{path.rpartition("/")[0]}/{name}': value for name, value in found.pop(path).items()})
    return found


@pytest.mark.slow
@pytest.mark.parametrize('name', CONVERTERS)
def test_converter(name, tmp_path, monkeypatch):
    monkeypatch.setattr(attributes, 'EPOCHS', 1)  # for time
    frozen = json.loads(gzip.decompress(PATH.read_bytes()))
    if name not in frozen:
        pytest.skip('it required operators of mmcv')
    expected = {
        path: pytest.approx(value, rel=1e-5, abs=1e-5) if isinstance(value, list) else value
        for path, value in frozen[name].items()
    }
    assert converted(name, tmp_path) == expected
