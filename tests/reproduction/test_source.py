"""What the sources state, compared with the configs."""

import re

import pytest

from reproduction.plan import source_words
from reproduction.protocol import shipped
from reproduction.source import READERS, differences, settings
from reproduction.tables import read_tables

pytestmark = pytest.mark.slow

TABLES = read_tables()
ROWS = [row for rows in TABLES.values() for row in rows]


def find(table, name, setting=''):
    (row,) = (row for row in TABLES[table] if (row.name, row.setting) == (name, setting))
    return row


def differing(row):
    return [difference.words for difference in differences(row, shipped(row.configs[-1]))]


STATED = {
    'optimizer': 'SGD',
    'learning rate': 0.01,
    'momentum': 0.9,
    'weight decay': 1e-4,
    'schedule': 'poly',
    'power': 0.9,
    'final rate': 0,
    'warm-up': 'none',
    'updates': 80000,
    'batch': 8,
    'crop': [769, 769],
    'scale': [0.75, 2],
    'augmentation': ['colours', 'crop', 'flip', 'scale'],
    'output stride': 8,
    'test windows': 'sliding',
    'test scales': 'one',
    'tested checkpoint': 'last',
}


def test_a_config_that_is_as_its_source_states_has_no_difference():
    assert differing(find('3.2', 'Bi-NL', 'R50')._replace(source=STATED)) == []


@pytest.mark.parametrize(
    ('changes', 'words'),
    [
        (dict(source={'learning rate': 0.02}), 'learning rate 0.01 (source: 0.02)'),
        (dict(options={'optim_wrapper.optimizer.lr': 0.005}), 'learning rate 0.005 (source: 0.01)'),
        (dict(options={'model.test_cfg.mode': 'whole'}), 'test windows whole image (source: sliding)'),
        (dict(options={'train_cfg.max_iters': 40000}), 'updates 40,000 (source: 80,000)'),
        (dict(options={'optim_wrapper.accumulative_counts': 2}), 'updates 40,000 (source: 80,000)'),
        (dict(batch_size=16), 'batch 16 (source: 8)'),
        (dict(test=['--tta']), 'test scales several, flipped (source: one)'),
        (
            dict(
                options={'param_scheduler': [dict(type='LinearLR', begin=0, end=500, by_epoch=False), dict(type='X')]}
            ),
            'warm-up 500 updates (source: none)',
        ),
        (dict(source={'crop': [512, 512]}), 'crop 769, 769 (source: 512, 512)'),
        (dict(source={'batch': 'not stated'}), 'batch 8'),
    ],
)
def test_a_changed_setting_is_a_difference(changes, words):
    row = find('3.2', 'Bi-NL', 'R50')
    row = row._replace(**{**changes, 'source': {**STATED, **changes.get('source', {})}})
    assert words in differing(row)


def test_a_setting_that_no_config_has_is_an_error():
    with pytest.raises(ValueError, match=r"table 3\.2: Source has 'colour', which is none of optimizer, "):
        differing(find('3.2', 'Bi-NL', 'R50')._replace(source={'colour': 'red'}))


def test_later_entries_and_the_row_itself_override():
    collection = dict(
        Source=[
            dict(Tables=['1'], Settings=dict(batch=1, crop=1, scale=1, beam=1)),
            dict(Tables=['1'], Data=['A'], Settings=dict(crop=2)),
            dict(Tables=['1'], Data=['B'], Settings=dict(batch=9)),
            dict(Tables=['2'], Settings=dict(batch=9)),
            dict(Tables=['1'], Rows=['Bi-*'], Settings=dict(scale=2)),
            dict(Tables=['1'], Rows=['CC'], Settings=dict(batch=9)),
            dict(Tables=['1'], Setting=['R50'], Settings=dict(batch=9)),
        ]
    )
    row = ROWS[0]._replace(table='1', data='A', name='Bi-CC', setting='')
    assert settings([{}, collection], row, dict(beam=2)) == dict(batch=1, crop=2, scale=2, beam=2)


def test_lengths_and_batches_are_those_of_the_configs_names():
    """An independent reading: ``4xb2-80k_cityscapes-769x769`` is 4·2 images, 80,000 iterations, and the crop."""
    read = dict.fromkeys(('updates', 'epochs', 'batch', 'crop'), 0)
    for row in ROWS:
        cfg, name = shipped(row.configs[-1]), row.configs[-1]
        counts = cfg.optim_wrapper.get('accumulative_counts', 1)
        processes, size = map(int, re.search(r'_(\d+)xb(\d+)[-_]', name).groups())
        expected = dict(batch=processes * size * counts)
        if length := re.search(r'-(\d+)(k|e)_', name):
            images = 2000 if 'helen' in name else 1500 if 'lfw' in name else None  # faces train for iterations
            expected['updates' if length[2] == 'k' else 'epochs'] = int(length[1]) * (1000 if length[2] == 'k' else 1)
            if images is not None:
                expected['updates'] = round(expected.pop('epochs') * images / 12)
        if crop := re.search(r'-(\d+)x(\d+)\.py', name) if 'sst' not in name and 'rcnn' not in name else None:
            expected['crop'] = [*map(int, crop.groups())]
        for key, value in expected.items():
            found = READERS[key](cfg, row)
            assert (list(found) if key == 'crop' else found) == value, (row, key)
            read[key] += 1
    assert min(read.values()) > 20


# Tables of our own runs, and the figures that the published code of BAN is said to have.
OWN = {'bccd', 'coco-qa', 'daquar', 'davis', 'easy-vqa', 'fasseg', 'flickr8k', 'flickr8k-entities', 'multi30k'}
OWN.add('ban-4-code')


@pytest.mark.parametrize('table', TABLES)
def test_every_table_of_a_paper_is_compared(table):
    """Every setting is found in the configs of all rows; a source leaves something open, or the config differs."""
    rows = TABLES[table]
    stated, choices = source_words(rows)
    assert all(bool(row.source) == (table not in OWN) for row in rows if not row.members)
    assert bool(stated or choices) == (table not in OWN)


@pytest.mark.parametrize('table', ['3.5', '3.6', '3.7'])
def test_translation_differs_in_checkpoints_and_length_penalty(table):
    stated, _ = source_words(TABLES[table])
    names = {text.split(' (')[0].rsplit(' ', 1)[0] for text in stated if text.startswith('length')}
    assert names == {'length penalty'}
    assert any(text.startswith('tested checkpoint best in the validation (source: average of') for text in stated)


@pytest.mark.parametrize(('setting', 'layers'), [('En-De', 7), ('De-En', 7)])
def test_layers_of_a_config_per_layer_are_counted(setting, layers):
    row = find('3.5', 'Dynamic Conv', setting)
    assert READERS['layers'](shipped(row.configs[-1]), row) == layers
