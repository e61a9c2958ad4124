"""What the sources state, compared with the configs."""

import re
from copy import deepcopy
from functools import cache

import pytest
from mmengine.fileio import load

from mmattn.utils import config_path
from reproduction.plan import source_words
from reproduction.protocol import shipped
from reproduction.source import READERS, NotStated, deviation_text, differences, settings
from reproduction.tables import read_tables

pytestmark = pytest.mark.slow

TABLES = read_tables()
ROWS = [row for rows in TABLES.values() for row in rows]


@cache
def printed(table):
    return source_words(TABLES[table])


def find(table, name, setting=''):
    (row,) = (row for row in TABLES[table] if (row.name, row.setting) == (name, setting))
    return row


def differing(row):
    return [difference.words for difference in differences(row._replace(deviations={}), map(shipped, row.configs))]


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
    assert differing(find('3.2', 'Bi-NL', 'R50')._replace(source=[STATED])) == []


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
        (dict(source={'batch': NotStated('section 4')}), 'batch 8'),
    ],
)
def test_a_changed_setting_is_a_difference(changes, words):
    row = find('3.2', 'Bi-NL', 'R50')
    row = row._replace(**{**changes, 'source': [{**STATED, **changes.get('source', {})}]})
    assert words in differing(row)


def test_a_setting_that_no_config_has_is_an_error():
    with pytest.raises(ValueError, match=r"table 3\.2: Source has 'colour', which is none of optimizer, "):
        differing(find('3.2', 'Bi-NL', 'R50')._replace(source=[{'colour': 'red'}]))


def test_later_entries_override():
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
    assert settings([{}, collection], row, 1) == dict(batch=1, crop=2, scale=2, beam=1)
    collection['Source'].append(dict(Tables=['1'], Stages=[2], Settings=dict(crop=3)))
    assert [settings([collection], row, stage)['crop'] for stage in (1, 2)] == [2, 3]


def test_what_is_not_stated_has_the_place_that_was_searched():
    """In the file, and in what is printed, which has the settings of a place together."""
    row = ROWS[0]._replace(table='1', data='A', name='Bi-CC', setting='')
    entry = dict(Tables=['1'], Settings=dict(batch='not stated', crop='not stated'))
    with pytest.raises(ValueError, match="table 1: 'batch' is not stated"):
        settings([dict(Source=[entry])], row, 1)
    (stated,) = [settings([dict(Source=[dict(entry, Place='section 4')])], row, 1)]
    row = find('3.2', 'Bi-NL', 'R50')._replace(source=[stated], deviations={})
    assert source_words([row]) == ([], ['not stated in section 4: batch 8; crop 769, 769'])


def test_every_stage_is_compared():
    """A setting that is changed in one stage is printed with the stage; what is the same in all, once."""
    row = find('ngsan-1', 'N-SAN 4')
    stated = {'learning rate': 1, 'batch': 1, 'beam': 1}
    assert differing(row._replace(source=[stated, stated])) == [
        'learning rate 0.0003 (source: 1) in stage 1',
        'learning rate 1e-05 (source: 1) in stage 2',
        'batch 10 (source: 1)',
        'beam 3 (source: 1)',
    ]
    as_stated, configs = differing(row), [deepcopy(shipped(name)) for name in row.configs]
    for stage, cfg in enumerate(configs, 1):
        cfg.optim_wrapper.optimizer.betas = (0.5, 0.5)
        changed = [difference.words for difference in differences(row._replace(deviations={}), configs)]
        added = f'betas 0.5, 0.5 (source: 0.9, {0.98 if stage == 1 else 0.999}) in stage {stage}'
        assert {*changed} - {*as_stated} >= {added}
        assert len({*changed} - {*as_stated}) == stage


def test_deviations_are_printed_by_their_tables():
    files = [load(path) for path in config_path().glob('*/metafile.yml')]
    entries = [x for file in files for part in file['Collections'] for x in part.get('Deviations', ())]
    listed = {deviation_text(entry): entry['Tables'] for entry in entries}
    assert len(listed) > 35
    for text, tables in listed.items():
        assert ';' not in text  # which separates what is printed
        assert all(any(text in words for words in printed(table)[0]) for table in tables), text


def test_options_have_the_defaults_of_their_classes():
    """A class without an option has no default of it."""
    caption, question = find('ngsan-1', 'N-SAN 4'), find('fusion-3.1', 'NE')
    with pytest.raises(ValueError, match=r"mmattn\.VQADataset has no option 'min_count'"):
        differing(question._replace(source=[{'least count of a word': 5}]))
    with pytest.raises(ValueError, match=r'mmattn\.COCOCaptionDataset has no questions'):
        differing(caption._replace(source=[{}, {'answers': 5}]))
    row = find('ngsan-7', 'NSA')  # whose class passes its options on
    assert differing(row._replace(source=[{}, {'least count of a word': 5, 'epsilon': 1, 'weight decay': 1}])) == [
        'least count of a word 6 (source: 5) in stage 2',
        'epsilon 1e-08 (source: 1) in stage 2',
        'weight decay 0 (source: 1) in stage 2',
    ]
    assert differing(question._replace(source=[{'answers': 2000, 'words of a question': 26}])) == []


@pytest.mark.parametrize(
    ('change', 'words'),
    [
        ({}, 'affine + colours + crop + flip + scale'),
        (dict(type='mmattn.ClipResize', ratio_range=(1, 1)), 'affine + colours + crop + flip'),
        (dict(type='mmattn.ClipResize', ratio_range=None), 'affine + colours + crop + flip'),
        (dict(type='Mine', ratio_range=(1, 1)), 'Mine + affine + colours + crop + flip'),
    ],
)
def test_augmentation_is_what_changes_pictures(change, words):
    """A range of sizes is a scale in every transform, and an unknown transform has its name."""
    row = find('5.3', 'T Sinusoidal')
    cfg = deepcopy(shipped(row.configs[0]))
    (resize,) = (step for step in cfg.train_dataloader.dataset.pipeline if step.type == 'mmattn.ClipResize')
    resize.update(change)
    (difference,) = differences(row._replace(source=[{'augmentation': 'x'}], deviations={}), [cfg])
    assert difference.words == f'augmentation {words} (source: x)'


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
    stated, choices = printed(table)
    assert all(bool(row.source) == (table not in OWN) for row in rows if not row.members)
    assert bool(stated or choices) == (table not in OWN)


@pytest.mark.parametrize('setting', ['En-De', 'De-En'])
def test_layers_of_a_config_per_layer_are_counted(setting):
    assert 'layers 7' in differing(find('3.5', 'Dynamic Conv', setting))
