"""Captions: what is in the files comes out, image by image, and all faults are reported before training."""

import gzip
import json
import re
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS
from torch.utils.data import DataLoader

from mmattn.engine import DefaultSampler
from mmattn.language.captioning import COCOCaptionDataset, VATEXDataset
from mmattn.language.captioning import annotations as attributes
from mmattn.language.captioning import datasets as caption_datasets
from mmattn.language.text.vocabulary import EOS, PAD, UNK

from ...requirements import requires
from ...tiny_data import misfits
from ..files import write_json
from ..world import stored

CAPTIONS = {
    '10': ('train', ['A dog runs.', 'A dog!', 'The dog runs fast.']),
    '11': ('restval', ['A cat.']),
    '12': ('val', ['A cat sleeps.', 'The cat']),
    '13': ('test', ['A bird sleeps', 'The bird sings']),
}
STORE = stored({name: 2 + i for i, name in enumerate(CAPTIONS)})


def tokens(text):
    return re.findall('[a-z]+', text.lower())


def karpathy(captions=CAPTIONS, **changed):
    images = [
        dict(cocoid=int(name), split=split, sentences=[dict(raw=text, tokens=tokens(text)) for text in texts])
        for name, (split, texts) in captions.items()
    ]
    images[0].update(changed)
    return dict(images=images)


def coco(captions=CAPTIONS):
    pairs = [(name, text) for name, (_, texts) in captions.items() for text in texts]
    return dict(
        images=[dict(id=int(name)) for name in captions],
        annotations=[dict(id=i, image_id=int(name), caption=text) for i, (name, text) in enumerate(pairs)],
    )


@pytest.fixture
def ann_file(tmp_path):
    return write_json(tmp_path / 'dataset_coco.json', karpathy())


def build(ann_file, split=None, **options):
    return COCOCaptionDataset(ann_file, STORE, split, **{'min_count': 1, 'captions_per_image': 3, **options})


def decoded(dataset, inputs):
    return [dataset.vocabulary.decode(row) for row in inputs['captions'].tolist()]


def test_training(ann_file):
    """Images of train and restval; captions with their end, padded; the regions of the image."""
    dataset = build(ann_file, 'train')
    first, second = dataset
    assert decoded(dataset, first['inputs']) == ['a dog runs', 'a dog', 'the dog runs <unk>']
    assert decoded(dataset, second['inputs']) == ['a cat'] * 3
    assert first['inputs']['captions'].dtype == torch.int64
    assert first['inputs']['captions'][1].tolist()[2:] == [EOS, PAD, PAD]
    for name, each in zip(('10', '11'), (first, second)):
        assert each['inputs']['features'] is STORE[name].features
        assert each['inputs']['boxes'] is STORE[name].boxes
        assert each['inputs']['sizes'].tolist() == [640, 480]
        assert (each['data_samples'].image_id, each['data_samples'].size) == (name, (640, 480))
    assert [each['data_samples'].index for each in (first, second)] == [0, 1]
    assert set(first['inputs']) == {'features', 'boxes', 'sizes', 'captions'}


def test_a_validation_whose_cider_is_0_is_said_before_training(tmp_path, logged):
    messages = logged(caption_datasets)
    for images in ({'10': ('val', ['A dog.'])}, {'10': ('val', ['A dog.']), '11': ('val', ['A cat.'])}):
        path = write_json(tmp_path / 'captions.json', coco(images))
        misfits(build(path, test_mode=True), reads_attributes=False)
    assert [message.split(': ')[0] for message in messages] == [str(path)]


def test_vocabulary(ann_file, tmp_path):
    """Words that occur more than min_count times, in all splits or some; metainfo has them."""
    everywhere = ['a', 'cat', 'dog', 'the', 'bird', 'runs', 'sleeps']  # 5, 3, 3, 3, 2, 2, 2 times
    assert build(ann_file, 'train').metainfo == dict(symbols=everywhere, max_words=16)
    assert build(ann_file, 'val', vocab_splits=['train']).metainfo['symbols'] == ['a', 'dog', 'runs']
    assert build(ann_file, 'train', min_count=2).metainfo['symbols'] == ['a', 'cat', 'dog', 'the']
    assert len(build(ann_file, 'train', min_count=0).vocabulary) == 4 + 9
    other = write_json(tmp_path / 'captions_val.json', coco({'12': CAPTIONS['12']}))
    assert build(other, vocab_file=ann_file, test_mode=True).metainfo['symbols'] == everywhere


def test_captions_are_cut(ann_file):
    dataset = build(ann_file, 'train', max_words=2)
    assert decoded(dataset, dataset[0]['inputs']) == ['a dog', 'a dog', 'the dog']
    assert dataset.references() == [[row.tolist() for row in dataset[0]['inputs']['captions']], [[4, 5, EOS]]]


@pytest.mark.parametrize('count', [1, 2, 3, 5, 7])
def test_choice_of_captions(ann_file, count):
    """All as often as they fit; the others differ among each other, by seed and position alone, and vary."""
    dataset = build(ann_file, 'train', captions_per_image=count)
    seen = set()
    for epoch in range(20):
        runs = []
        for _ in range(2):
            sampler = DefaultSampler(dataset, shuffle=False, seed=3)
            sampler.set_epoch(epoch)
            loader = DataLoader(dataset, sampler=sampler, batch_size=1, collate_fn=pseudo_collate)
            runs.append([decoded(dataset, dict(captions=batch['inputs']['captions'][0])) for batch in loader])
        assert runs[0] == runs[1]
        found = Counter(runs[0][0])
        assert sum(found.values()) == count
        assert {count // 3, -(-count // 3)} >= {found[text] for text in ('a dog runs', 'a dog', 'the dog runs <unk>')}
        seen.add(tuple(runs[0][0]))
    assert len(seen) == (1 if count == 3 else 3)


def test_layouts_hold_the_same(tmp_path, ann_file):
    """COCO's, compressed, and Karpathy's with names of files."""
    splits = [build(ann_file, split, test_mode=True) for split in ('train', 'val', 'test')]
    expected = [sample['data_samples'].captions for dataset in splits for sample in dataset]
    path = tmp_path / 'captions.json.gz'
    path.write_bytes(gzip.compress(json.dumps(coco()).encode()))
    dataset = build(str(path), test_mode=True)
    assert dataset.image_ids == list(CAPTIONS)
    assert [sample['data_samples'].captions for sample in dataset] == expected
    assert all('captions' not in sample['inputs'] for sample in dataset)
    assert dataset.metainfo == build(ann_file, 'train').metainfo
    named = karpathy()
    for image in named['images']:
        image['filename'] = f'{image.pop("cocoid")}.jpg'
    assert build(write_json(tmp_path / 'dataset_flickr8k.json', named), 'train').image_ids == ['10', '11']


def test_a_file_without_captions_is_for_tests(tmp_path, ann_file):
    path = write_json(tmp_path / 'image_info.json', dict(images=[dict(id=13)]))
    (only,) = build(path, vocab_file=ann_file, test_mode=True)
    assert only['data_samples'].captions == []


def test_attributes(tmp_path, ann_file, logged):
    """The best ones, by score; equal ones in their order; each once; unknown words are left out and counted."""
    messages = logged(attributes)
    detected = {'10': [['cat', 0.1], ['dog', 0.9], ['emu', 0.5], ['a', 0.9]], '99': [['cat', 1]]}
    path = write_json(tmp_path / 'attributes.json', detected)
    dataset = build(ann_file, 'train', attributes=path, num_attributes=3)
    found = [sample['inputs']['attributes'] for sample in dataset]
    assert [[dataset.vocabulary.symbols[n] for n in each] for each in found] == [['dog', 'a'], []]
    assert {each.dtype for each in found} == {torch.int64}
    assert [message for message in messages if not message.startswith('vocabulary')] == [
        f'{path}: 2 attributes of 2 images; 1 are left out because they are not in the vocabulary; 1 images have none'
    ]
    assert dataset.metainfo['num_attributes'] == 3
    four = build(ann_file, 'train', attributes=path)[0]['inputs']['attributes']
    assert [dataset.vocabulary.symbols[n] for n in four] == ['dog', 'a', 'cat']


def test_oracle_attributes(ann_file):
    dataset = build(ann_file, 'val', oracle_attributes=True, test_mode=True)
    found = dataset[0]['inputs']['attributes'].tolist()
    assert [dataset.vocabulary.symbols[n] for n in found] == ['a', 'cat', 'sleeps', 'the']
    train = build(ann_file, 'train', oracle_attributes=True, test_mode=True, max_words=1)
    assert UNK not in train[0]['inputs']['attributes']
    assert len(train[0]['inputs']['attributes']) == 4


def test_all_faults_are_reported_at_once(tmp_path):
    data = karpathy(split='train')
    data['images'] += [
        dict(cocoid=10, split='train', sentences=[dict(raw='.', tokens=[])]),
        dict(cocoid=20, split='train', sentences=[]),
        dict(cocoid=21, sentences=[]),
        dict(cocoid=22, split='train', sentences=[dict(raw='a </s>', tokens=['a', '</s>'])]),
        dict(cocoid=23, split='train', sentences=[dict(raw='a', tokens='a')]),
        'image',
    ]
    with pytest.raises(ValueError, match='7 faults') as error:
        build(write_json(tmp_path / 'dataset.json', data), 'train')
    places = ['dataset.json', "images[6]: no key 'split'", 'images[8]', 'images[9]', 'image 10: 2 times']
    places += ["image 10: the caption '.'", 'image 20', "image 22: '</s>'"]
    assert [place for place in places if place not in str(error.value)] == []


@pytest.mark.parametrize(
    ('content', 'options', 'names'),
    [
        ({}, {}, 'images'),
        ([], {}, 'no image'),
        (dict(images=[dict(id=1)], annotations=[dict(image_id=2, caption='a')]), {}, 'image 2'),
        (dict(images=[dict(id=1), dict(id=1)], annotations=[]), {}, 'image 1: 2 times'),
        (dict(images=[dict(id=1)], annotations=[dict(image_id=1)]), {}, r"annotations\[0\]: .*'caption'"),
        ([dict(videoID='a', enCap='text')], {}, 'enCap'),
        ([dict(enCap=['text'])], {}, 'videoID'),
        (karpathy({f'1{i:02}': ('train', ['a']) for i in range(30)}), dict(split='train'), 'image 100: (?s:.*)10 more'),
        (karpathy(), {}, 'split .*None'),
        (karpathy(), dict(split='restval'), 'split .*restval'),
        (karpathy(), dict(split='train', vocab_splits=['dev']), 'vocab_splits'),
        (coco(), dict(split='train'), 'split'),
        (dict(images=[dict(id=13)]), dict(vocab_file='words.json', test_mode=False), 'no captions'),
        (karpathy(), dict(split='val', oracle_attributes=True, test_mode=False), 'oracle_attributes'),
        *(
            (None, {name: least - 1}, name)
            for name, least in dict(min_count=0, max_words=1, captions_per_image=1).items()
        ),
    ],
)
def test_failures(tmp_path, content, options, names):
    path, words = tmp_path / 'file.json', write_json(tmp_path / 'words.json', karpathy())
    if content is not None:
        write_json(path, content)
    options = {**dict(test_mode=True), **options}
    if 'vocab_file' in options:
        options['vocab_file'] = words
    with pytest.raises((OSError, ValueError), match=names):
        build(str(path), **options)


@pytest.mark.parametrize(
    ('attributes', 'names'),
    [
        ({'10': [['emu', 1]]}, '2 images'),
        ([], 'object'),
        ({'10': [['dog']], '11': 'dog', '12': [['a', 1]]}, 'image 10: .*\n  image 11'),
        ({'10': [['dog', float('nan')]]}, 'image 10'),
        ({'10': [['hot dog', 1]]}, 'image 10'),
    ],
)
def test_wrong_attributes(tmp_path, ann_file, attributes, names):
    path = write_json(tmp_path / 'attributes.json', attributes)
    with pytest.raises(ValueError, match=f'^{path}: (.*\n)*.*{names}'):
        build(ann_file, 'train', attributes=path)


def test_an_image_without_regions_is_named(ann_file):
    with pytest.raises(ValueError, match='image 10'):
        COCOCaptionDataset(ann_file, stored({'10': 0, '11': 1}), 'train')[0]


def test_vatex(tmp_path):
    """Time steps without boxes; ten captions, of which five are drawn; the vocabulary of the training file."""
    videos = [
        dict(videoID=f'v_{i}', enCap=[f'A man sings {word}.' for word in 'bcdefghijk'], chCap=['…']) for i in (0, 1)
    ]
    train = write_json(tmp_path / 'train.json', videos)
    store = stored({'v_0': 4, 'v_1': 5, 'v_2': 6}, boxes=False)
    dataset = DATASETS.build(dict(type='mmattn.VATEXDataset', ann_file=train, regions=store))
    sample = dataset[1]
    assert set(sample['inputs']) == {'features', 'captions'}
    assert sample['inputs']['features'].shape == (5, 3)
    assert sample['inputs']['captions'].shape == (5, 5)
    assert len(set(decoded(dataset, sample['inputs']))) == 1  # rare letters are unknown
    assert dataset.metainfo['symbols'] == ['a', 'man', 'sings']
    test = write_json(tmp_path / 'test.json', [dict(videoID='v_2')])
    (only,) = VATEXDataset(test, store, vocab_file=train, test_mode=True)
    assert only['data_samples'].captions == []


@pytest.mark.slow
@requires('flickr8k')
def test_flickr8k(flickr8k):
    """The published file: 6,000 and 500 images; the vocabulary by a count of our own."""
    path = flickr8k / 'dataset_flickr8k.json.gz'
    images = json.loads(gzip.decompress(path.read_bytes()))['images']
    regions = SimpleNamespace(features=torch.zeros(37, 128), boxes=None, size=(1, 1))
    store = {image['filename'].removesuffix('.jpg'): regions for image in images}
    train = COCOCaptionDataset(str(path), store, 'train')
    counts = Counter(word for image in images for each in image['sentences'] for word in each['tokens'])
    assert len(train) == 6000
    assert len(train.vocabulary) == 4 + sum(count > 5 for count in counts.values())
    assert {len(captions) for captions in train.references()} == {5}
    val = COCOCaptionDataset(str(flickr8k / 'captions_val.json'), store, vocab_file=str(path), test_mode=True)
    assert len(val) == 500
