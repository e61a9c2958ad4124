"""The choice of images for validation."""

from pathlib import Path

import pytest

from mmattn.segmentation.conversion import choose_validation
from mmattn.utils.faults import FaultsError


def test_another_image_does_not_change_the_choice_of_many():
    names = {Path(f'{i}'): {0} for i in range(100)}
    chosen = choose_validation(names, 0.25, 0)
    assert len(chosen) == 25
    assert len(choose_validation({**names, Path('more'): {0}}, 0.25, 0) ^ chosen) <= 2


def test_training_keeps_every_class(capsys):
    classes = {Path(f'{i}'): {0, i % 4} for i in range(7)}  # the class 3 in one image
    for seed in range(20):
        chosen = choose_validation(classes, 0.5, seed)
        assert set().union(*(classes[name] for name in {*classes} - chosen)) == {0, 1, 2, 3}
        assert chosen
    capsys.readouterr()
    assert len(choose_validation({Path('a'): {0}, Path('b'): {0, 1}}, 0.9, 0)) == 1
    assert 'instead of' not in capsys.readouterr().out
    rare = {Path(f'{i}'): {i} for i in range(9)} | {Path('a'): {0}}
    assert len(choose_validation(rare, 0.5, 0)) == 1
    assert '1 instead of 5 images are for validation' in capsys.readouterr().out
    with pytest.raises(FaultsError, match='a class that no other image has'):
        choose_validation({Path('a'): {0}, Path('b'): {1}}, 0.5, 0)
