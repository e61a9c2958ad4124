"""The accuracy of answers to visual questions."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from mmengine.logging import print_log

from mmattn.language.models.unique_metric import UniqueMetric
from mmattn.registry import METRICS
from mmattn.utils.files import write_text

from .answers import answer_score, official_score


@METRICS.register_module()
class VQAAccuracy(UniqueMetric):
    """Accuracy of answers, in percent, as in the official evaluation of VQA 1.0 and 2.0.

    The accuracy of an answer that c of ten humans give is the mean of min(1, matches/3) over the ten subsets of nine,
    which is min(1, 0.3 c); both sides are normalised, see :func:`mmattn.language.vqa.normalize_answer`. With one answer
    per question, it is the exact match.

    'accuracy' is of all questions; 'accuracy/number' and so on are of the questions with this answer type or question
    type. 'raw accuracy', with ten answers, compares the published strings without normalisation, as the validation of
    the bilinear attention network's code.

    Questions without answers, as in the test set of the server, have no figures, but can be written to a file.

    Args:
        question_types (bool): also return the accuracy of each question type; VQA has 65. Defaults to True.
        output_dir (str, optional): folder for ``results.json``, in the format of the server, ``[{"question_id": 42,
            "answer": "dog"}, …]``, and ``scores.json``, the scores of each question for paired statistics,
            ``{"scores": {question id: {"accuracy": 30.0, "raw accuracy": 30.0, "image_id": "12"}}}``.
            ``tools/test.py --out`` sets it. Defaults to None, no files.
        **kwargs: as in :class:`mmattn.language.models.unique_metric.UniqueMetric`.

    Raises:
        OSError: the folder of a file is not writable.

    Example:
        >>> metric = VQAAccuracy()
        >>> metric.dataset_meta = dict(answers=['2', 'red'])
        >>> about = dict(question_type='how many', answer_type='number')
        >>> metric.process({}, [dict(question_id=7, pred_label=0, answers=['two'] * 3 + ['4'] * 7, **about)])
        >>> metric.evaluate(1)
        {'accuracy': 90.0, 'accuracy/number': 90.0, 'accuracy/how many': 90.0, 'raw accuracy': 0.0}
    """

    key = 'question_id'

    def __init__(self, question_types: bool = True, output_dir: str | None = None, **kwargs: Any) -> None:
        super().__init__(output_dir, **kwargs)
        self.question_types = question_types

    def process(self, data_batch: dict, data_samples: Sequence[dict]) -> None:
        """Keep the answers of a batch.

        Args:
            data_batch (dict): not used.
            data_samples (sequence of dict): with ``question_id`` (int), ``pred_label`` (int), the number of an answer
                in the ``metainfo`` of the data set, ``answers`` (list of str), ten, one or none, ``question_type`` and
                ``answer_type`` (str), '' for none, and ``image_id`` (str, optional), which is only written.
        """
        answers = (self.dataset_meta or {})['answers']
        for sample in data_samples:
            result = {name: sample[name] for name in ('question_id', 'question_type', 'answer_type')}
            result.update(answer=answers[int(sample['pred_label'])], answers=list(sample['answers']))
            if 'image_id' in sample:
                result['image_id'] = sample['image_id']
            self.results.append(result)

    def compute_metrics(self, results: list[dict]) -> dict[str, float]:
        """Compute the figures and write the requested files.

        Args:
            results (list of dict): one per question, in the order of their ids.

        Returns:
            dict: the figures by name, in percent; empty if there are no answers.
        """
        if self.output_dir is not None:
            records = [{name: result[name] for name in ('question_id', 'answer')} for result in results]
            write_text(self.output_dir / 'results.json', json.dumps(records, ensure_ascii=False))
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
        if self.output_dir is not None:
            write_text(self.output_dir / 'scores.json', json.dumps(dict(scores=scores), ensure_ascii=False))
        if raw:
            groups['raw accuracy'] = raw
        return {name: math.fsum(values) / len(values) for name, values in groups.items()}
