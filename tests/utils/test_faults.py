"""Faults of what a user gave: where they are collected, and how one error lists them."""

import pickle

import pytest

from mmattn.utils.faults import Faults, FaultsError, difference, reading, shorten


def test_a_long_list_is_shortened():
    assert shorten(range(20)) == [*map(str, range(20))]
    assert shorten(range(21)) == [*map(str, range(20)), '… and 1 more']
    assert shorten('abc', 3) == ['a', 'b', 'c']
    assert shorten(range(5000), 1) == ['0', '… and 4,999 more']


@pytest.mark.parametrize(
    ('arguments', 'text'),
    [
        (('a.json: empty',), 'a.json: empty'),
        (('a.json', 'empty'), 'a.json: empty'),
        (('a.json', 'x', 'y'), 'a.json: 2 faults:\n  x\n  y'),
        (({'': ['x', 'y']},), '2 faults:\n  x\n  y'),
        (({'a': ['x'], 'b': ['y', 'z']},), '3 faults:\n  a: x\n  b: y\n  b: z'),
        (
            ('a', *'abcdefghijklmnopqrstuvw'),
            'a: 23 faults:\n  ' + '\n  '.join('abcdefghijklmnopqrst') + '\n  … and 3 more',
        ),
    ],
)
def test_an_error_lists_faults_by_place(arguments, text):
    error = FaultsError(*arguments)
    assert str(error) == text
    assert str(pickle.loads(pickle.dumps(error))) == text


def test_at_most_some_faults_of_each_place():
    error = FaultsError({'a': ['x', 'y', 'z'], 'b': ['x']})
    assert error.lines(2) == ['a: x', 'a: y', 'a: … and 1 more', 'b: x']
    assert error.lines() == ['a: x', 'a: y', 'a: z', 'b: x']


def test_faults_are_collected_once_each():
    faults = Faults('a', ['x', 'y'])
    faults.add('a', 'x')
    faults.add('b')
    faults.extend([('b', 'x'), ('c', 'z')])
    faults.include(FaultsError('no place'), 'd')
    faults.include(FaultsError('a', 'w'), 'd')
    assert faults.by_path == {'a': ['x', 'y', 'w'], 'b': ['x'], 'c': ['z'], 'd': ['no place']}
    assert len(faults) == 6
    assert 'b' in faults
    assert 'e' not in faults
    with pytest.raises(FaultsError, match='6 faults'):
        faults.check()
    Faults().check()


def test_errors_of_a_block_are_faults():
    faults = Faults()
    for error in (
        FaultsError('a', 'x'),
        FaultsError('its own'),
        ValueError('here: y'),
        ValueError('z'),
        OSError(2, 'missing', 'b'),
        OSError(5, 'broken'),
        OSError('odd'),
    ):
        with faults.catch('here'):
            raise error
    assert faults.by_path == {'a': ['x'], 'here': ['its own', 'y', 'z', 'broken', 'odd'], 'b': ['missing']}
    with pytest.raises(KeyError), faults.catch('here'):
        raise KeyError


def test_entries_that_cannot_be_parsed_are_faults():
    faults = Faults()
    entries = [{'n': 1.0}, {}, {'n': 'a'}, None, {'n': float('inf')}, {'n': 3}]
    assert faults.parse('a', entries, lambda entry: int(entry['n']), 'sizes') == [1, 3]
    assert faults.parse('b', 3, int, 'numbers') == []
    assert [text.partition(' ')[0] for text in faults.by_path['a']] == [f'sizes[{i}]:' for i in (1, 2, 3, 4)]
    assert "no key 'n'" in faults.by_path['a'][0]
    assert "'a'" in faults.by_path['a'][1]
    assert faults.by_path['b'] == ['numbers: not a list']


@pytest.mark.parametrize(
    ('error', 'kind', 'text'),
    [
        (ValueError('two\n lines'), FaultsError, 'a.json: no sizes: two lines'),
        (KeyError('width'), FaultsError, "a.json: no sizes: no 'width'"),
        (RuntimeError(), FaultsError, 'a.json: no sizes: RuntimeError()'),
        (OSError('cut short'), FaultsError, 'a.json: no sizes: cut short'),
        (ValueError('in a.json: x'), FaultsError, 'in a.json: x'),
        (RuntimeError('in a.json: x'), FaultsError, 'a.json: no sizes: in a.json: x'),
        (FaultsError('a.json', 'x'), FaultsError, 'a.json: x'),
        (FaultsError('b.json', 'x'), FaultsError, 'a.json: no sizes: b.json: x'),
        (FileNotFoundError(2, 'gone', 'a.json'), FileNotFoundError, "[Errno 2] gone: 'a.json'"),
    ],
)
def test_what_reading_raises_names_the_file(error, kind, text):
    with pytest.raises(kind) as caught, reading('a.json', 'no sizes'):
        raise error
    assert type(caught.value) is kind
    assert str(caught.value) == text
    if kind is FaultsError and text.startswith('a.json: no sizes'):
        assert caught.value.by_path == {'a.json': [text.removeprefix('a.json: ')]}
        with pytest.raises(FaultsError, match=r'^a\.json: (?!no sizes)'), reading('a.json'):
            raise error


def test_the_first_difference():
    assert difference('word', ['a', 'b'], ['a', 'c', 'd']) == "word 1 is 'b', but 'c' (of 2 and 3 words)"
    assert difference('word', [], ['c']) == "word 0 is None, but 'c' (of 0 and 1 words)"
