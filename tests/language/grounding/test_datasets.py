"""The data set of phrase grounding."""

from types import SimpleNamespace

import pytest
import torch

from mmattn.language import Regions, RegionWriter
from mmattn.language.grounding import EntitiesDataset
from mmattn.language.grounding.entities import EntityBoxes, parse_caption, prepared
from mmattn.language.text.vocabulary import SPECIALS

from ..files import write_json
from .test_phrase_recall import iou

SIZE = (50, 40)
REGIONS = torch.tensor([[0.0, 0, 50, 40], [0, 0, 10, 10], [5, 0, 15, 10], [30, 20, 40, 40]])
BOXES = {'7': [[0, 0, 10, 10], [30, 20, 45, 40]], '8': [[0, 0, 10, 20]], '9': [[1, 1, 2, 2]]}


@pytest.fixture
def folder(tmp_path):
    captions = [
        parse_caption(text)
        for text in (
            '[/EN#7/people Two, men] near [/EN#8/other/scene a red car] and [/EN#5/other it] , [/EN#9/other a bird] .',
            '[/EN#5/other Nothing] with a box',
            'a [/EN#8/other car] .',
        )
    ]
    train = [('42', captions, EntityBoxes(SIZE, BOXES, set(), set()))]
    val = [('43', [parse_caption('[/EN#7/people a unicorn] .')], EntityBoxes(SIZE, BOXES, set(), set()))]
    for split, images in (('train', train), ('val', val)):
        write_json(tmp_path / f'entities_{split}.json', prepared(images))
    with RegionWriter(tmp_path / 'regions') as writer:
        for seed, name in enumerate(('42', '43')):
            features = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))
            writer.write(name, Regions(features, REGIONS, SIZE))
    return tmp_path


def build(folder, split='train', **options):
    options = dict(regions='regions', vocab_file='entities_train.json', data_root=str(folder)) | options
    return EntitiesDataset(f'entities_{split}.json', **options)


def test_a_sample_is_a_caption_with_its_phrases_that_have_a_box(folder):
    data = build(folder)
    symbols = data.metainfo['symbols']
    assert symbols[:3] == ['a', '.', 'car']
    assert len(symbols) == 13
    assert [each['data_samples'].caption_id for each in data] == ['42#0', '42#2']
    first = data[0]
    inputs = first['inputs']
    words = [(*SPECIALS, *symbols)[number] for number in inputs['caption']]
    assert ' '.join(words) == 'two men near a red car and it a bird .'
    assert inputs['phrases'].tolist() == [1, 5, 9]
    boxes = [BOXES[name] for name in '789']
    expected = [[max(iou(region, box) for box in each) >= 0.5 for region in REGIONS.tolist()] for each in boxes]
    assert expected == [[False, True, False, True], [False, True, False, False], [False] * 4]  # IoU 0.5 counts
    assert torch.equal(inputs['targets'], torch.tensor(expected).float())
    assert torch.equal(inputs['features'], data.store['42'].features)
    assert torch.equal(inputs['boxes'], REGIONS)
    assert inputs['sizes'].tolist() == [50, 40]
    sample = first['data_samples']
    assert (sample.caption_id, sample.image_id, sample.size) == ('42#0', '42', SIZE)
    assert data[1]['inputs']['phrases'].tolist() == [1]
    assert build(folder, min_iou=0.3)[0]['inputs']['targets'].sum() == 4  # 1/3 more
    with pytest.raises(IndexError):
        data[2]


def test_a_sample_of_the_test(folder):
    data = build(folder, 'val', test_mode=True)
    sample = data[0]
    # An unknown word is padding.
    assert sample['inputs']['caption'].tolist() == [4, 1, 5]
    assert sorted(sample['inputs']) == ['boxes', 'caption', 'features', 'phrases', 'sizes']
    assert torch.equal(sample['data_samples'].regions, REGIONS)
    (phrase,) = sample['data_samples'].phrases
    assert (phrase['text'], phrase['types']) == ('a unicorn', ['people'])
    assert phrase['boxes'].tolist() == BOXES['7']


def stored(**changed):
    return dict(
        regions={'42': SimpleNamespace(**{'features': torch.zeros(4, 6), 'boxes': REGIONS, 'size': SIZE} | changed)}
    )


@pytest.mark.parametrize(
    ('options', 'names'),
    [
        (dict(min_iou=0), 'min_iou'),
        (dict(regions={}), 'entities_train.json: image 42'),
        (stored(size=(40, 50)), 'image 42: 50×40 .*40×50'),
        (stored(boxes=None), 'image 42: no boxes'),
        (dict(split='none'), 'no caption'),
    ],
)
def test_failures(folder, options, names):
    write_json(folder / 'entities_none.json', dict(images={}, captions=[]))
    with pytest.raises(ValueError, match=names):
        build(folder, **options)[0]
