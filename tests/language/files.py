"""Files that tests write and read."""

import json

import h5py


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
