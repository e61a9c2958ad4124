"""Pictures by the ids of their images: none is taken if several may be meant."""

import pytest

from mmattn.language.regions.image_inputs import picture_paths


def test_pictures_by_names_and_numbers(tmp_path):
    names = 'dog.jpg', 'COCO_val2014_000000000042.jpg', '._COCO_val2014_000000000043.jpg', 'a_1.jpg', 'b_1.jpg', '7.png'
    for name in (*names, 'x_7.jpg', 'notes.txt'):
        (tmp_path / name).touch()
    found = picture_paths(tmp_path)
    named = ['dog', 'COCO_val2014_000000000042', 'a_1', 'b_1', '7', 'x_7']
    assert {key: path.name for key, path in found.items()} == {
        **{key: next(name for name in (*names, 'x_7.jpg') if name.startswith(key)) for key in named},
        '42': 'COCO_val2014_000000000042.jpg',
    }
    (tmp_path / 'dog.png').touch()
    with pytest.raises(ValueError, match=r'several pictures of one image: dog\.jpg and dog\.png'):
        picture_paths(tmp_path)
