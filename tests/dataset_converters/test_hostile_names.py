"""What a file of annotations says cannot run code in the config that a converter writes, nor read other files."""

import json
from pathlib import Path

import pytest

from mmattn.utils.faults import FaultsError

from .conftest import places, scripts
from .test_annotation_formats import FLAT, coco, noise, yolo

annotations, readers, color_labels, parallel_text = scripts(
    'annotations', 'annotation_readers', 'color_labels', 'parallel_text'
)
NAMES = "{{$X:lambda:0|'Kq|Kq'|S}}", 'Kq,__import__("os").system("touch ran"),Kq'  # mmengine would make them a command
TASKS = 'segmentation', 'detection'


def with_classes(write):
    """Write an export with an entry of each of two classes, by the writer of a format."""

    def written(folder, classes, *images):
        if write is yolo:
            return yolo(folder, '0 .5 .5 .2 .2', '1 .5 .5 .2 .2', names=json.dumps(dict(names=classes)))
        categories = [dict(id=label, name=name) for label, name in enumerate(classes)]
        files = [dict(id=number, file_name=name) for number, name in enumerate(images or ('a.png', 'b.png'))]
        entries = [
            dict(category_id=label, segmentation=[FLAT], image_id=i) for label in (0, 1) for i in range(len(files))
        ]
        return coco(folder, *entries, categories=categories, images=files)

    return written


@pytest.mark.parametrize('task', TASKS)
@pytest.mark.parametrize('write', [coco, yolo])
@pytest.mark.parametrize('classes', [NAMES, ('{{', 'x'), ('x', '}}')])
def test_no_class_of_an_export_is_replaced_in_the_config(fails, tmp_path, task, write, classes):
    for name in 'ab':
        noise(tmp_path / f'export/{name}.png')
    with_classes(write)(tmp_path / 'export', classes)
    [fault] = fails(annotations, tmp_path / 'export', '--task', task)
    [place] = places([fault])
    assert Path(place).parent == tmp_path / 'export'
    assert repr(next(name for name in classes if '{{' in name or '}}' in name)) in fault


@pytest.mark.parametrize('options', [[], ['--val-fraction', 0.5]])
@pytest.mark.parametrize('from_file', [False, True])
def test_no_class_of_a_palette_is_replaced_in_the_config(fails, tmp_path, options, from_file):
    for kind in ('images', 'masks'):
        for seed, name in enumerate('ab'):
            noise(tmp_path / f'{kind}/{name}.png', seed)
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
            noise(tmp_path / f'{kind}/{name}.png', seed)
    with_classes(coco)(tmp_path / 'images', 'xy')
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
        noise(tmp_path / place)
    with_classes(coco)(tmp_path / 'export', 'xy', 'b.png', name)
    [fault] = fails(annotations, tmp_path / 'export', '--task', task)
    assert places([fault]) == [f'{tmp_path}/export/all.json']
    assert name in fault


@pytest.mark.parametrize('name', ['../photos/a.png', '{}/photos/a.png', 'x/../../photos/a.png', '/elsewhere/a.png'])
def test_a_path_to_an_image_of_the_folder_is_read(tmp_path, name):
    """As labelme writes it, and of another machine; also where the folder is a link."""
    noise(tmp_path / 'store/a.png')
    (tmp_path / 'photos').symlink_to('store')
    (tmp_path / 'labels').mkdir()
    files = [dict(id=1, file_name=name.format(tmp_path))]
    coco(tmp_path / 'labels', images=files)
    path = tmp_path / 'labels/all.json'
    for images in ('photos', 'store'):
        assert [*readers.read(path, tmp_path / images).pictures] == [tmp_path / images / 'a.png']
    with pytest.raises(FaultsError):
        readers.read(path)
