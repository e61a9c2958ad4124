"""The model with which a checkpoint was trained: what is read from the text of its config, and what differs."""

import pytest

from mmattn.utils import trained_model as module
from mmattn.utils.trained_model import (
    differences,
    differing_values,
    model_differences,
    trained_model,
    trained_settings,
    value_text,
    warn_of_differences,
)


def test_constants_are_read_and_code_is_not_run():
    text = "model = dict(type='SAN', sizes=[1, (2, -3)], more={'a': None, 2: dict(b=1.5)})\n"
    text += "import os\nother = os.getcwd()\nopen('x', 'w')\nsome = dict(a=f(3))\npairs = dict([(1, 2)])\na.b = 4\n"
    assert trained_settings(dict(cfg=text)) == {
        'model': {'type': 'SAN', 'sizes': [1, [2, -3]], 'more': {'a': None, 2: {'b': 1.5}}},
        'a.b': 4,
    }
    assert trained_model(dict(cfg=text))['type'] == 'SAN'
    for wrong in ({}, dict(cfg='model = 3'), dict(cfg='model = ('), dict(cfg=None), dict(cfg='model = f()')):
        assert trained_model(wrong) is None


def test_differing_settings_have_their_place_and_both_values():
    a = dict(same=1, number=1, inner=[dict(x=1, y=2), 3], longer=[1], only=4, kind=dict(a=1))
    b = dict(same=1, number=2, inner=(dict(x=1, y=5), 3), longer=[1, 2], kind=3, new=None)
    assert [*differing_values('', a, b)] == [
        ('number', 1, 2),
        ('inner.0.y', 2, 5),
        ('longer', [1], [1, 2]),
        ('only', 4, 'not set'),
        ('kind', dict(a=1), 3),
        ('new', 'not set', None),
    ]
    assert len([*differences('model', a, b)]) == 6
    assert [*differences('model', a, b, lambda key: key in ('number', 'only'))] == [
        'model.number is 1 (in training: 2)',
        'model.only is 4 (in training: not set)',
    ]
    assert (value_text(module.ABSENT), value_text('a')) == ('not set', "'a'")
    assert len(value_text(['word'] * 99)) <= 200


@pytest.mark.parametrize(
    ('ours', 'trained', 'differs'),
    [
        (dict(type='SyncBN'), dict(type='BN'), False),
        (dict(type='mmattn.A'), dict(type='A'), False),
        (dict(type='A'), dict(type='B'), True),
        (dict(dropout=0.1, attn_dropout=0.2), dict(dropout=0.0), False),
        (dict(loss_decode=1, aux_loss=3), dict(), False),
        (dict(test_cfg=1, init_cfg=1, pretrained=1, data_preprocessor=2), dict(), False),
        (dict(window_size=3), dict(window_size=5), True),
    ],
)
def test_what_trained_weights_compute_is_compared(ours, trained, differs):
    """In any part of the model. Models of another type are not compared."""
    model, other = (dict(type='mmattn.Net', parts=[part]) for part in (ours, trained))
    assert bool(model_differences(model, other)) == differs
    assert model_differences(model, dict(other, type='Nets')) == []
    assert model_differences(dict(model, type='mmattn.TiledEncoderDecoder', a=1), dict(other, type='EncoderDecoder'))


def test_a_checkpoint_of_another_model_is_a_warning(monkeypatch):
    said = []
    monkeypatch.setattr(module, 'print_log', lambda text, _, level: said.append((level, text)))
    meta = dict(cfg="model = dict(type='Net', size=3, depth=1)")
    warn_of_differences('a.pth', meta, dict(type='Net', size=3, depth=1))
    warn_of_differences('a.pth', {}, dict(type='Net', size=4))
    assert said == []
    warn_of_differences('a.pth', meta, dict(type='Net', size=4, depth=2))
    ((level, text),) = said
    assert level == 30
    assert text.startswith('a.pth: ')
    assert 'model.size is 4 (in training: 3); model.depth is 2 (in training: 1)' in text
