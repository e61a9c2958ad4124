"""What a file of annotations says cannot run code in the config that a converter writes, nor read other files."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmattn.utils.faults import FaultsError

from .conftest import places, scripts

annotations, readers, color_labels, parallel_text = scripts(
    'annotations', 'annotation_readers', 'color_labels', 'parallel_text'
)
NAMES = "{{$X:lambda:0|'Kq|Kq'|S}}", 'Kq,__import__("os").system("touch ran"),Kq'  # mmengine would make them a command
TASKS = 'segmentation', 'detection'


def save(path, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (48, 64, 3), dtype=np.uint8)).save(path)


def coco(folder, classes, images=('a.png', 'b.png')):
    """Write annotations of COCO, with one box of each class in each of the images."""
    shape = dict(bbox=[5, 5, 20, 20], area=400, iscrowd=0, segmentation=[[5, 5, 25, 5, 25, 25, 5, 25]])
    objects = [
        dict(shape, id=1 + image * len(classes) + label, image_id=image, category_id=label)
        for image in range(len(images))
        for label in range(len(classes))
    ]
    content = dict(
        images=[dict(id=number, file_name=name, width=64, height=48) for number, name in enumerate(images)],
        annotations=objects,
        categories=[dict(id=label, name=name) for label, name in enumerate(classes)],
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / 'all.json'
    path.write_text(json.dumps(content))
    return path


def yolo(folder, classes):
    (folder / 'data.yaml').write_text(json.dumps(dict(names=classes)))
    for name in 'ab':
        (folder / f'{name}.txt').write_text(''.join(f'{label} .5 .5 .2 .2\n' for label in range(len(classes))))


@pytest.mark.parametrize('task', TASKS)
@pytest.mark.parametrize('write', [coco, yolo])
@pytest.mark.parametrize('classes', [NAMES, ('{{', 'x'), ('x', '}}')])
def test_no_class_of_an_export_is_replaced_in_the_config(fails, tmp_path, task, write, classes):
    for name in 'ab':
        save(tmp_path / f'export/{name}.png')
    write(tmp_path / 'export', classes)
    [fault] = fails(annotations, tmp_path / 'export', '--task', task)
    [place] = places([fault])
    assert Path(place).parent == tmp_path / 'export'
    assert repr(next(name for name in classes if '{{' in name or '}}' in name)) in fault


@pytest.mark.parametrize('options', [[], ['--val-fraction', 0.5]])
@pytest.mark.parametrize('from_file', [False, True])
def test_no_class_of_a_palette_is_replaced_in_the_config(fails, tmp_path, options, from_file):
    for kind in ('images', 'masks'):
        for seed, name in enumerate('ab'):
            save(tmp_path / f'{kind}/{name}.png', seed)
    palette = [f'{name}:{number},0,0' for number, name in enumerate(NAMES)]
    if from_file:
        path = tmp_path / 'palette.txt'
        path.write_text('\n'.join(palette))
        palette = [path]
    folders = '--images', tmp_path / 'images', '--masks', tmp_path / 'masks'
    [fault] = fails(color_labels, *folders, '--palette', *palette, '--max-distance', 500, *options)
    assert places([fault]) == [str(path) if from_file else 'palette']
    assert repr(NAMES[0]) in fault


@pytest.mark.parametrize('folder', ['{{$X:y}}', 'a{{', '{{ fileBasename }}/b', "it's"])
def test_nor_is_the_path_of_the_config(command, tmp_path, folder):
    for kind in ('images', 'masks'):
        for seed, name in enumerate('ab'):
            save(tmp_path / f'{kind}/{name}.png', seed)
    coco(tmp_path / 'images', 'xy')
    (tmp_path / 'pairs.tsv').write_text(''.join(f'a {number}\tein {number}\n' for number in range(100)))
    colours = '--masks', tmp_path / 'masks', '--palette', 'x:0,0,0', 'y:255,255,255', '--max-distance', 500
    for module, *arguments in (
        (annotations, tmp_path / 'images', '--task', 'detection'),
        (color_labels, '--images', tmp_path / 'images', *colours, '--val-fraction', 0.5),
        (parallel_text, tmp_path / 'pairs.tsv', '--source', 'en', '--target', 'de', '--merges', 5),
    ):
        code, _, said = command(module, *arguments, out=tmp_path / folder)
        assert code == 1
        assert str(tmp_path / folder) in said[-1]
        assert not (tmp_path / folder).exists()


@pytest.mark.parametrize('task', TASKS)
@pytest.mark.parametrize('name', ['../secret.png', 'sub/../../secret.png', '{}/secret.png', '../export_2/a.png'])
def test_no_image_outside_of_the_folder_is_read(fails, tmp_path, task, name):
    """Nor an image of the folder in its place."""
    name = name.format(tmp_path)
    for place in ('secret.png', 'export_2/a.png', 'export/a.png', 'export/b.png'):
        save(tmp_path / place)
    path = coco(tmp_path / 'export', 'xy', ['b.png', name])
    [fault] = fails(annotations, tmp_path / 'export', '--task', task)
    assert places([fault]) == [str(path)]
    assert name in fault


@pytest.mark.parametrize('name', ['../photos/a.png', '{}/photos/a.png', 'x/../../photos/a.png', '/elsewhere/a.png'])
def test_a_path_to_an_image_of_the_folder_is_read(tmp_path, name):
    """As labelme writes it, and of another machine; also where the folder is a link."""
    save(tmp_path / 'store/a.png')
    (tmp_path / 'photos').symlink_to('store')
    path = coco(tmp_path / 'labels', 'x', [name.format(tmp_path)])
    for images in ('photos', 'store'):
        assert [*readers.read(path, tmp_path / images).pictures] == [tmp_path / images / 'a.png']
    with pytest.raises(FaultsError):
        readers.read(path)
