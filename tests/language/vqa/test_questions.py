"""Questions: the numbers of their words, the file with all its faults, and the splits of converted ones."""

import pytest

from common.vqa import hold_out
from mmattn.language.text.vocabulary import PAD, UNK
from mmattn.language.vqa import Question, QuestionTokenizer, read_questions, write_questions

from ..files import write_json


def test_numbers():
    """Cut, padded on the right; an unknown word is padding, or <unk>; so is a word with a reserved name."""
    for tokens, unknown, count in (('ban', PAD, 14), ('mcan', UNK, 14), ('skip-thought', UNK, 26)):
        tokenizer = QuestionTokenizer(['a', 'dog'], tokens)
        assert tokenizer('A cat dog?').tolist() == [4, unknown, 5, *[PAD] * (count - 3)]
        assert tokenizer('a ' * 30).tolist() == [4] * count
        assert tokenizer('?').tolist() == [PAD] * count
        assert tokenizer('<s> <pad> a').tolist()[:3] == [unknown, unknown, 4]
        assert tokenizer.words('a ' * 30) == ['a'] * count
    assert QuestionTokenizer(['a'], max_words=2)('b a a').tolist() == [PAD, 4]


QUESTIONS = [
    Question(7, '42', 'Is it a café?', ['yes'] * 7 + ['no'] * 3, 'yes', 'is it', 'yes/no'),
    Question(8, 'image9', '', [''], '', '', ''),
]


def test_a_file_is_read_as_it_was_written(tmp_path):
    write_questions(tmp_path / 'q.json', QUESTIONS)
    assert read_questions(tmp_path / 'q.json') == QUESTIONS
    unanswered = [each._replace(answers=[], answer='') for each in QUESTIONS]
    write_questions(tmp_path / 'q.json', unanswered)
    assert read_questions(tmp_path / 'q.json') == unanswered


def test_the_majority_answer_is_the_most_frequent_one(tmp_path):
    entry = dict(question_id=1, image_id=42, question='?', answers=['b', 'a', 'a', 'c'] * 2 + ['b', 'b'])
    write_json(tmp_path / 'q.json', dict(questions=[entry]))
    (found,) = read_questions(tmp_path / 'q.json')
    assert (found.answer, found.image_id) == ('b', '42')


def test_all_faults_are_reported_at_once(tmp_path):
    good, path = dict(question_id=1, image_id='42', question='?', answers=['a']), tmp_path / 'q.json'
    wrong = [dict(question_id='1'), dict(question=3), dict(answers='a'), dict(answers=[1]), dict(image_id=None)]
    wrong += [dict(question_id=2, answers=['a'] * 9), dict(question_id=3, answers=[]), {}]
    write_json(path, dict(questions=[good, *(good | each for each in wrong), dict(image_id='42')]))
    with pytest.raises(ValueError, match='9 faults') as error:
        read_questions(path)
    places = [f'{path}: ', *(f'questions[{number}]' for number in (1, 2, 3, 4, 5, 9))]
    places += ['question 2: must have one answer or 10', 'question 3', 'question 1: 2 times']
    assert [place for place in places if place not in str(error.value)] == []
    for text in ('[]', '{"questions": []}', '{'):
        path.write_text(text, encoding='utf-8')
        with pytest.raises(ValueError, match=str(path)):
            read_questions(path)


CONVERTED = [Question(number, image, '?') for number, image in enumerate('abacb')]


@pytest.mark.parametrize(
    ('splits', 'expected'),
    [
        (['train', 'val'], dict(train='abacb', val='aac', test='bb')),
        (['train', 'test'], dict(train='abacb', val='aac', test='bb')),
        (['train', 'val', 'test-dev'], dict(train='abacb', val='aac', test='bb', **{'test-dev': 'abacb'})),
        (['train', 'val', 'test'], dict(train='abacb', val='abacb', test='abacb')),
        (['test'], dict(test='abacb')),
    ],
)
def test_every_second_image_is_held_out_for_testing(splits, expected):
    held = hold_out(dict.fromkeys(splits, CONVERTED))
    assert {
        split: ''.join(question.image_id for question in questions) for split, questions in held.items()
    } == expected


def test_one_image_cannot_be_divided():
    one = [Question(number, 'a', '?') for number in range(3)]
    for split in ('val', 'test'):
        assert hold_out({split: one}) == {split: one}
        with pytest.raises(ValueError, match=f'split {split}'):
            hold_out({'train': CONVERTED, split: one})
