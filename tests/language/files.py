"""Files that tests write and read."""

import json
from types import SimpleNamespace

import h5py
import numpy as np
import torch
from mmengine.config import Config
from PIL import Image


def read_json(path):
    return json.loads(path.read_text(encoding='utf-8'))


def write_json(path, data):
    path.write_text(json.dumps(data), encoding='utf-8')
    return str(path)


def edit(path, function):
    """Let a function change the content of a JSON file."""
    content = read_json(path)
    function(content)
    write_json(path, content)


STORED = 'regions-00000.h5'  # the file of a region store of up to 500 images


def edit_store(folder, name, function):
    """Let a function change an array of a region store."""
    with h5py.File(folder / STORED, 'r+') as file:
        array = file[name][()]
        function(array)
        file[name][...] = array


def set_source(folder, source):
    """Change the source of a region store."""
    with h5py.File(folder / STORED, 'r+') as file:
        file.attrs['source'] = source


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write_model(folder, name, model, config, **meta):
    """Write the config of a model and its checkpoint, as mmengine does; return their paths."""
    path, checkpoint = folder / f'{name}.py', folder / f'{name}.pth'
    Config(dict(model=config)).dump(str(path))
    torch.save(dict(meta=dict(dataset_meta=meta, epoch=1), state_dict=model.state_dict()), checkpoint)
    return SimpleNamespace(config=path, checkpoint=checkpoint)


def write_noise(path, seed, size):
    """Write a picture of noise, of this width and height."""
    noise = np.random.default_rng(seed).integers(0, 255, (*size[::-1], 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
