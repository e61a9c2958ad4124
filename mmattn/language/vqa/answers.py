"""Answers to visual questions: the official normalisation and accuracy, a model's list of answers, and the metric."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from mmengine.logging import print_log
from torch import Tensor

from mmattn.language.unique_metric import UniqueMetric
from mmattn.registry import METRICS

from .questions import HUMANS, Question

# A contraction is recognised with one of its apostrophes missing. The official table has six more entries, which never
# apply: keys with a capital I, which are looked up after lower-casing, and "let's" and "she's" for themselves.
_CONTRACTIONS = """
    ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't he'd he'd've
    he's how'd how'll how's isn't it'd it'd've it'll ma'am might've mightn't mightn't've must've mustn't needn't not've
    o'clock oughtn't 'ow's'at shan't she'd've should've shouldn't shouldn't've somebody'd've somebody'll somebody's
    someone'd someone'd've someone'll someone's something'd something'd've something'll that's there'd there'd've
    there're there's they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're what's
    what've when's where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't would've
    wouldn't wouldn't've y'all y'all'd've y'all'll you'd you'd've you'll you're you've
"""
CONTRACTIONS = {
    word[: mark.start()] + word[mark.end() :]: word for word in _CONTRACTIONS.split() for mark in re.finditer("'", word)
} | {"somebody'd": 'somebodyd'}  # so in the official table
_NUMBERS = ('zero', 'one', 'two', 'three', 'four', 'five', 'six', 'seven', 'eight', 'nine', 'ten')
NUMBERS = {word: str(number) for number, word in enumerate(_NUMBERS)} | {'none': '0'}
ARTICLES = ('a', 'an', 'the')
PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
PERIODS = 32  # later periods stay: the official code passes a flag of this value as the count


def strip_answer(text: str) -> str:
    """Replace the newlines and tabs of an answer by spaces, and strip the white space around it."""
    return text.replace('\n', ' ').replace('\t', ' ').strip()


@lru_cache(maxsize=1 << 16)  # the same answers are given to many questions
def normalize_answer(text: str) -> str:
    r"""Normalise an answer as the official evaluation of VQA does before it compares answers.

    Each of ``;/[]"{}()=+\_-><@`,?!`` is deleted if it is next to a space anywhere in the text, or if the text has a
    comma between two digits. Otherwise, it becomes a space. A period is deleted unless a digit follows. The text is
    lower-cased, numbers up to ten become digits, articles are left out, and contractions get their apostrophe.

    Source: ``vqaEval.py`` of the VQA API.

    Example:
        >>> [normalize_answer(text) for text in ('Two dogs.', 'red/white', '10,000', 'dont know', 'the U.S.')]
        ['2 dogs', 'red white', '10000', "don't know", 'us']
    """
    text = normalized = strip_answer(text)
    in_number = re.search(r'\d,\d', text) is not None
    for mark in PUNCTUATION:
        at_space = f'{mark} ' in text or f' {mark}' in text
        normalized = normalized.replace(mark, '' if at_space or in_number else ' ')
    normalized = re.sub(r'\.(?!\d)', '', normalized, count=PERIODS)
    words = (NUMBERS.get(word, word) for word in normalized.lower().split())
    return ' '.join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)


def answer_score(count: int, answers: int) -> float:
    """Compute the accuracy of an answer: min(1, 0.3 count) with ten answers per question, 0 or 1 with one answer."""
    return min(1.0, 3 * count / HUMANS) if answers > 1 else float(count)


def official_score(prediction: str, answers: Sequence[str]) -> float:
    """Compute the official accuracy of a predicted answer, from 0 to 1, against ten answers or one.

    Prediction and answers are normalised, unless all ten answers are equal, or there is only one.

    Example:
        >>> official_score('2', ['two'] * 2 + ['three'] * 8), official_score('2', ['two'])
        (0.6, 0.0)
    """
    prediction, answers = strip_answer(prediction), [strip_answer(answer) for answer in answers]
    if len(set(answers)) > 1:
        prediction, answers = normalize_answer(prediction), [normalize_answer(answer) for answer in answers]
    return answer_score(answers.count(prediction), len(answers))


def frequent_answers(
    questions: Iterable[Question], min_answers: int = 1, num_answers: int | None = None, normalize: bool = False
) -> list[str]:
    """List the majority answers of questions, the most frequent first, ties in reverse alphabetical order.

    Args:
        questions (iterable of Question): questions without answers do not count.
        min_answers (int): number of questions that an answer must have. Defaults to 1.
        num_answers (int, optional): largest number of answers. Defaults to None, no limit.
        normalize (bool): normalise the answers. An answer that becomes empty is left out. Defaults to False.

    Example:
        >>> questions = [Question(i, '1', '', [text], text) for i, text in enumerate(['Two', '2', 'red', 'sky'])]
        >>> frequent_answers(questions), frequent_answers(questions, num_answers=2, normalize=True)
        (['sky', 'red', 'Two', '2'], ['2', 'sky'])
    """
    counts = Counter(normalize_answer(question.answer) if normalize else question.answer for question in questions)
    del counts['']
    frequent = sorted((text for text in counts if counts[text] >= min_answers), reverse=True)
    return sorted(frequent, key=lambda text: -counts[text])[:num_answers]


def best_answers(scores: Tensor, answers: Sequence[str], top_k: int) -> list[tuple[str, float]]:
    """Select the best answers with their scores, the best first. ``scores`` ``(A,)`` are the scores of all answers."""
    values, numbers = scores.float().cpu().sort(descending=True, stable=True)
    pairs = zip(numbers[:top_k].tolist(), values[:top_k].tolist())
    return [(answers[number], score) for number, score in pairs]


class AnswerIndex:
    """The numbers of the answers that a model can give.

    Args:
        answers (sequence of str): the answers, number 0 first.
        normalize_answers (bool): ``answers`` are normalised majority answers. Defaults to False.
        normalize_counts (bool): normalise the ten answers to a question before they are counted. Defaults to False.
    """

    def __init__(self, answers: Sequence[str], normalize_answers: bool = False, normalize_counts: bool = False) -> None:
        self.numbers = {text: number for number, text in enumerate(answers)}
        self.normalize_answers, self.normalize_counts = normalize_answers, normalize_counts
        self._normalized = {normalize_answer(text) for text in answers}

    def counts(self, answers: Sequence[str]) -> dict[int, int]:
        """Count how many of the ``answers`` to a question give each answer. The keys are the numbers of the answers."""
        # The only answer of a question is its majority answer.
        normalize = self.normalize_counts or (len(answers) == 1 and self.normalize_answers)
        counts = Counter(map(normalize_answer, answers) if normalize else answers)
        return {self.numbers[text]: count for text, count in counts.items() if text in self.numbers}

    def samples(self, question: Question) -> bool:
        """Check whether sampled training uses a question: the list has its majority answer and one of its answers."""
        majority = normalize_answer(question.answer) if self.normalize_answers else question.answer
        return majority in self.numbers and bool(self.counts(question.answers))

    def best_score(self, question: Question) -> float:
        """Compute the largest official accuracy that these answers allow for a question with answers."""
        answers = [strip_answer(answer) for answer in question.answers]
        if len(set(answers)) == 1:
            return float(answers[0] in self.numbers)
        counts = Counter(map(normalize_answer, answers))
        return answer_score(max((counts[text] for text in counts.keys() & self._normalized), default=0), len(answers))


@METRICS.register_module()
class VQAAccuracy(UniqueMetric):
    """Compute the accuracy of answers, in percent, as the official evaluation of VQA 1.0 and 2.0 does.

    An answer that c of ten humans give has accuracy min(1, 0.3 c), the mean of min(1, matches/3) over the ten subsets
    of nine. Prediction and answers are normalised by :func:`mmattn.language.vqa.normalize_answer`. With one answer per
    question, the accuracy is the exact match.

    'accuracy' covers all questions, 'accuracy/number' and so on the questions with this answer type or question type.
    'raw accuracy', with ten answers, compares the published strings without normalisation, as the code of the bilinear
    attention network does. Questions without answers, as in the test set of the server, have no figures, but can be
    written to a file.

    Args:
        question_types (bool): also report the accuracy of each of the 65 question types of VQA. Defaults to True.
        output_dir (str, optional): folder for two files. ``results.json`` has the format of the server,
            ``[{"question_id": 42, "answer": "dog"}, …]``. ``scores.json`` has the scores of each question for paired
            statistics, ``{"scores": {question id: {"accuracy": 30.0, "raw accuracy": 30.0, "image_id": "12"}}}``.
            ``tools/test.py --out`` sets it. Defaults to None, no files.
        **kwargs: as in :class:`mmattn.language.unique_metric.UniqueMetric`.

    Example:
        >>> metric = VQAAccuracy()
        >>> metric.dataset_meta = dict(answers=['2', 'red'])
        >>> about = dict(question_type='how many', answer_type='number')
        >>> metric.process({}, [dict(question_id=7, pred_label=0, answers=['two'] * 3 + ['4'] * 7, **about)])
        >>> metric.evaluate(1)
        {'accuracy': 90.0, 'accuracy/number': 90.0, 'accuracy/how many': 90.0, 'raw accuracy': 0.0}
    """

    metric_names = ('accuracy', 'raw accuracy')
    key = 'question_id'

    def __init__(self, question_types: bool = True, output_dir: str | None = None, **kwargs: Any) -> None:
        super().__init__(output_dir, **kwargs)
        self.question_types = question_types

    def process(self, data_batch: dict, data_samples: Sequence[dict]) -> None:
        """Keep the answers of a batch.

        Samples have ``question_id`` (int), ``pred_label`` (int, a number in 'answers' of the data set's ``metainfo``),
        ``answers`` (list of str, ten, one or none), ``question_type`` and ``answer_type`` (str, '' for none), and
        optionally ``image_id`` (str), which is only written.
        """
        answers = (self.dataset_meta or {})['answers']
        for sample in data_samples:
            result = {name: sample[name] for name in ('question_id', 'question_type', 'answer_type')}
            result.update(answer=answers[int(sample['pred_label'])], answers=list(sample['answers']))
            if 'image_id' in sample:
                result['image_id'] = sample['image_id']
            self.results.append(result)

    def compute_metrics(self, results: list[dict]) -> dict[str, float]:
        """Compute the figures by name, in percent, or none without answers. Write the requested files."""
        self.write('results.json', [{name: result[name] for name in ('question_id', 'answer')} for result in results])
        without = [result['question_id'] for result in results if not result['answers']]
        if without:
            print_log(f'no figures: {len(without):,} questions without answers, such as {without[0]}', 'current')
            return {}
        groups: dict[str, list[float]] = {'accuracy': []}
        raw: list[float] = []
        scores: dict[int, dict[str, float | str]] = {}
        types = ('answer_type', 'question_type') if self.question_types else ('answer_type',)
        for result in results:
            answer, answers = result['answer'], result['answers']
            score = 100 * official_score(answer, answers)
            names = [f'accuracy/{result[name]}' for name in types if result[name]]
            for name in ('accuracy', *dict.fromkeys(names)):
                groups.setdefault(name, []).append(score)
            scores[result['question_id']] = {'accuracy': score}
            if 'image_id' in result:
                scores[result['question_id']]['image_id'] = result['image_id']
            if len(answers) > 1:
                raw.append(100 * answer_score(answers.count(answer), len(answers)))
                scores[result['question_id']]['raw accuracy'] = raw[-1]
        self.write('scores.json', dict(scores=scores))
        if raw:
            groups['raw accuracy'] = raw
        return {name: math.fsum(values) / len(values) for name, values in groups.items()}
