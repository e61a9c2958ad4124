"""Readers of Flickr30k Entities: brackets, boxes and the prepared file."""

import re
from copy import deepcopy

import pytest

from common.published_entities import parse_annotation, parse_sentences
from mmattn.language.grounding.entities import (
    Caption,
    EntityBoxes,
    Phrase,
    parse_caption,
    prepared,
    rank_words,
    read_entities,
)

from ..files import write_json


def test_spans_count_the_words_that_are_read():
    """Commas before and in phrases, a possessive and a repeated phrase: each span gives the words of its bracket."""
    text = (
        "On, well, [/EN#0/notvisual it] , [/EN#1/people A tall, young man]'s [/EN#2/bodyparts/other hand] touches "
        "[/EN#3/animals the dog's] , [/EN#4/animals the dog's] nose ?"
    )
    words, phrases = parse_caption(text)
    assert ' '.join(words) == "on well it a tall young man 's hand touches the dog 's the dog 's nose"
    assert [(each.entity, each.types, words[each.start : each.end]) for each in phrases] == [
        ('0', ['notvisual'], ['it']),
        ('1', ['people'], ['a', 'tall', 'young', 'man']),
        ('2', ['bodyparts', 'other'], ['hand']),
        ('3', ['animals'], ['the', 'dog', "'s"]),
        ('4', ['animals'], ['the', 'dog', "'s"]),
    ]
    assert (phrases[3].start, phrases[4].start) == (10, 13)
    assert parse_caption('') == ([], [])


def test_all_faults_of_sentences():
    lines = [
        '[/EN#1/people A man] runs',
        '[/EN#x/people A man]',
        'a ] b',
        '[/EN#2/other , ?] is',
        '',
        '[/EN#3/a [/EN#4/b c]]',
    ]
    with pytest.raises(ValueError, match=r'42\.txt: 4 faults') as error:
        parse_sentences('\n'.join(lines), '42.txt')
    assert re.findall(r'line (\d)', str(error.value)) == ['2', '3', '4', '6']
    assert parse_sentences('', '42.txt') == [([], [])]
    assert parse_sentences('a\r\n\r\nb\n', '42.txt') == [(['a'], []), ([], []), (['b'], [])]


def annotation(*objects, size='<size><width>50</width><height>40</height><depth>3</depth></size>'):
    return f'<annotation><filename>42.jpg</filename>{size}{"".join(objects)}</annotation>'


def thing(names, *boxes, other=''):
    corners = ('xmin', 'ymin', 'xmax', 'ymax')
    found = ''.join(
        f'<bndbox>{"".join(f"<{name}>{x}</{name}>" for name, x in zip(corners, box))}</bndbox>' for box in boxes
    )
    return f'<object>{"".join(f"<name>{name}</name>" for name in names)}{found}{other}</object>'


def test_boxes_count_from_0_and_an_object_may_have_several_ids():
    text = annotation(
        thing(['7', '8'], (1, 1, 50, 40)),
        thing(['8'], (2, 3, 4, 5)),
        thing(['9'], other='<scene>1</scene><nobndbox>0</nobndbox>'),
        thing(['10', '11'], other='<scene>0</scene><nobndbox>1</nobndbox>'),
    )
    assert parse_annotation(text.encode(), '42.xml') == EntityBoxes(
        (50, 40), {'7': [[0, 0, 49, 39]], '8': [[0, 0, 49, 39], [1, 2, 3, 4]]}, {'9'}, {'10', '11'}
    )


def test_all_faults_of_an_annotation():
    boxes = [[(1, 1, 2, 2)], [(1, 1, 2, 2)], [(9, 1, 2, 2)], [(9,)], [(1, 1, 51, 2)], [(0, 1, 5, 2)]]
    names = [[], ['a'], ['7'], ['7'], ['7'], ['7']]
    with pytest.raises(ValueError, match=r'42\.xml: 6 faults') as error:
        parse_annotation(annotation(*(thing(*pair) for pair in zip(names, *zip(*boxes)))), '42.xml')
    assert re.findall(r'object (\d): .*?(names|ends|ymin|outside)', str(error.value)) == [
        ('1', 'names'), ('2', 'names'), ('3', 'ends'), ('4', 'ymin'), ('5', 'outside'), ('6', 'outside')
    ]  # fmt: skip
    for text in ('<annotation>', annotation(size='')):
        with pytest.raises(ValueError, match=r'42\.xml: not an annotation'):
            parse_annotation(text, '42.xml')


CAPTION = parse_caption('[/EN#7/people A man] on [/EN#8/other a bike] on [/EN#9/scene a road]')
BOXES = EntityBoxes((50, 40), {'7': [[0, 0, 9, 9]], '9': [[0, 20, 49, 39], [0, 0, 5, 5]]}, {'8'}, set())


def test_the_prepared_file_contains_all(tmp_path):
    path = tmp_path / 'entities_val.json'
    write_json(path, prepared([('42', [CAPTION, Caption(['é'], [])], BOXES)]))
    found = read_entities(path)
    assert found.captions == [('42#0', '42', CAPTION), ('42#1', '42', (['é'], []))]
    assert (found.sizes, found.boxes) == ({'42': (50, 40)}, {'42': BOXES.boxes})
    assert found.grounded(found.captions[0]) == [Phrase('7', ['people'], 0, 2), Phrase('9', ['scene'], 6, 8)]
    assert rank_words(found) == ['a', 'on', 'bike', 'man', 'road', 'é']


def set_in(*keys, value):
    """A change of the prepared file at this place."""

    def change(data):
        for key in keys[:-1]:
            data = data[key]
        data[keys[-1]] = value

    return change


PHRASE = ('captions', 0, 'phrases', 0)
WRONG_BOXES = [[0, 0, 9], [0.1, 0.1, 0.5, 0.9], [0, 0, 51, 9], [9, 0, 8, 9]]


@pytest.mark.parametrize(
    ('change', 'places'),
    [
        (lambda data: data['captions'][1].update(caption_id='42#0', image_id='43'), ['caption 42#0'] * 2),
        (set_in(*PHRASE[:-1], 2, 'end', value=9), ['caption 42#0']),
        *((set_in(*PHRASE, 'start', value=x), None) for x in (-1, True, 0.0)),
        *((set_in(*PHRASE, name, value=x), None) for name, x in dict(entity=[7], types=[[3]], end=2.0).items()),
        *((set_in('images', '42', 'size', value=x), None) for x in ([50, 40.0], [0, 40], [True, 40], [50])),
        (set_in('images', '42', 'boxes', '7', value=WRONG_BOXES), ['caption 42#0, entity 7'] * 4),
        (set_in('images', '42', 'boxes', '8', value=[]), ['caption 42#0, entity 8']),
        (lambda data: data.pop('captions'), None),
        (set_in('captions', value=[dict(caption_id='1')]), None),
        (set_in('images', '42', value=dict(size=['x', 5])), None),
    ],
)
def test_faults_of_the_prepared_file(tmp_path, change, places):
    """All of them, each at its place."""
    path, data = tmp_path / 'entities_val.json', deepcopy(prepared([('42', [CAPTION, Caption(['é'], [])], BOXES)]))
    change(data)
    write_json(path, data)
    with pytest.raises(ValueError, match=f'^{path}: ') as error:
        read_entities(path)
    found = re.findall(r'(caption 42#\d(?:, entity \d)?): ', str(error.value))
    assert places is None or found == places
