"""Questions about images: their file format, and the numbers of their words."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mmattn.language.text.annotation_files import check_text, read_json
from mmattn.language.text.vocabulary import PAD, SPECIALS, Vocabulary
from mmattn.language.text.words import find_rule
from mmattn.utils.checks import check_count
from mmattn.utils.faults import Faults, FaultsError
from mmattn.utils.files import write_text

HUMANS = 10  # answers of a question in VQA 1.0 and 2.0


class Question(NamedTuple):
    """A question about an image, and its answers.

    Args:
        question_id (int): unique in its file.
        image_id (str): id of the image in the region store, or the name of its picture without suffix.
        question (str): as published.
        answers (list of str): ten, or one. Empty in test sets whose answers are not published.
        answer (str): the majority answer, '' without answers.
        question_type, answer_type (str): such as 'how many' and 'number', or ''.
    """

    question_id: int
    image_id: str
    question: str
    answers: list[str] = []
    answer: str = ''
    question_type: str = ''
    answer_type: str = ''


def read_questions(path: str | Path) -> list[Question]:
    """Read the questions of a file that a converter, or :func:`write_questions`, has written.

    The file has an object with a list 'questions' of objects, whose keys are the fields of :class:`Question`. Without
    'answer', the majority answer is the most frequent one, the first of equals. A faulty file raises a ValueError that
    lists all faults: another layout, no question, a question twice, or answers that are neither one nor ten, or that
    only some questions have.
    """
    data = read_json(path)
    faults = Faults()
    entries = data.get('questions') if isinstance(data, dict) else None
    if not isinstance(entries, list):
        raise FaultsError(path, "not an object with a list 'questions'; the converters of visual questions write it")
    questions = faults.parse(path, entries, _parse, 'questions')
    counts = Counter(question.question_id for question in questions)
    faults.add(
        path, *(f'question {number}: {count} times in the file' for number, count in counts.items() if count > 1)
    )
    answered = any(question.answers for question in questions)
    for question in questions:
        if answered and len(question.answers) not in (1, HUMANS):
            text = f'must have one answer or {HUMANS}; got {len(question.answers)}'
            faults.add(path, f'question {question.question_id}: {text}')
    if not questions and not faults:
        faults.add(path, 'no question')
    faults.check()
    return questions


def _parse(entry: dict) -> Question:
    number, image = entry['question_id'], entry['image_id']
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"'question_id' must be an integer; got {number!r}")
    answers = entry.get('answers', [])
    if not isinstance(answers, list):
        raise TypeError(f"'answers' must be a list; got {answers!r}")
    answers = [check_text(answer) for answer in answers]
    majority = entry.get('answer') or (Counter(answers).most_common(1)[0][0] if answers else '')
    return Question(
        number,
        str(image) if isinstance(image, int) else check_text(image),
        check_text(entry['question']),
        answers,
        check_text(majority),
        check_text(entry.get('question_type') or ''),
        check_text(entry.get('answer_type') or ''),
    )


def format_questions(questions: Iterable[Question]) -> str:
    """Format questions without their empty fields, as :func:`write_questions` writes them."""
    kept = [
        {name: value for name, value in question._asdict().items() if name == 'question' or value not in ('', [])}
        for question in questions
    ]
    return json.dumps(dict(questions=kept), ensure_ascii=False)


def write_questions(path: str | Path, questions: Iterable[Question]) -> None:
    """Write a file of questions without their empty fields.

    Example:
        >>> write_questions('questions_val.json', [Question(7, '42', 'What is this?', ['dog'], 'dog')])
        >>> read_questions('questions_val.json')[0].answers
        ['dog']
    """
    write_text(path, format_questions(questions))


class QuestionTokenizer:
    """Turn the text of a question into numbers.

    Args:
        symbols (sequence of str): the vocabulary without the four special symbols, as in the ``metainfo`` of
            :class:`VQADataset` and in checkpoints.
        tokens (str): all kinds lower-case the text. 'ban' removes ``,`` and ``?``, splits off ``'s``, and reads an
            unknown word as padding. 'mcan' removes ``.,'!?"()*#:;``, reads ``-`` and ``/`` as spaces, and an unknown
            word as ``<unk>``. 'skip-thought' does the same, but removes ``?!'"$:@(),.;``. Defaults to 'ban'.
        max_words (int, optional): longer questions are cut. Defaults to 14, and to 26 for 'skip-thought'.

    Example:
        >>> tokenizer = QuestionTokenizer(['is', 'this', 'a', 'dog'], max_words=6)
        >>> tokenizer('Is this, truly, a dog?')
        tensor([4, 5, 1, 6, 7, 1])
    """

    def __init__(self, symbols: Sequence[str], tokens: str = 'ban', max_words: int | None = None) -> None:
        self.tokens, self._rule = tokens, find_rule(tokens)
        self.max_words = self._rule.max_words if max_words is None else max_words
        check_count('max_words', self.max_words)
        self.vocabulary = Vocabulary(symbols)

    def words(self, text: str) -> list[str]:
        """Split a text into the words that the model reads, at most ``max_words``."""
        return self._rule.words(text)[: self.max_words]

    def unread(self, text: str) -> list[str]:
        """List the words after the first ``max_words``."""
        return self._rule.words(text)[self.max_words :]

    def numbers(self, text: str) -> list[int]:
        """Convert the words that the model reads to numbers."""
        numbers = self.vocabulary.encode(' '.join(self.words(text)))[:-1]
        return [self._rule.unknown if number < len(SPECIALS) else number for number in numbers]

    def __call__(self, text: str) -> Tensor:
        """Convert a text to int64 ``(max_words)``, padded on the right with ``<pad>``."""
        return self.pad(self.numbers(text))

    def pad(self, numbers: Sequence[int]) -> Tensor:
        """Pad numbers to int64 ``(max_words)``."""
        row = torch.full((self.max_words,), PAD)
        row[: len(numbers)] = torch.as_tensor(numbers, dtype=torch.int64)
        return row
