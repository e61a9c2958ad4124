"""Files that tests write and read."""

import json
from types import SimpleNamespace

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
    """Let a function change the array of a .npy file, or the content of a JSON file."""
    read, write = (np.load, np.save) if path.suffix == '.npy' else (read_json, write_json)
    content = read(path)
    function(content)
    write(path, content)


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
