"""Data sets of visual questions with their answers, and with the features of regions or with pictures."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.logging import print_log
from mmengine.structures import BaseDataElement
from torch import Tensor

from mmattn.engine.data_sampling import index_generator
from mmattn.language.regions.image_inputs import (
    check_images,
    check_regions,
    image_inputs,
    open_store,
    picture_paths,
)
from mmattn.language.regions.region_store import Regions, RegionStore
from mmattn.language.text.annotation_files import in_folder
from mmattn.language.text.text_dataset import Indices, PackedSequences, TextDataset, select_indices
from mmattn.language.text.words import find_rule, question_words, unspaced_fault
from mmattn.registry import DATASETS
from mmattn.utils.checks import check_choice, check_count, check_fraction
from mmattn.utils.faults import Faults, FaultsError
from mmattn.utils.images import decoding, deep_picture_fault, open_whole

from .answers import AnswerIndex, answer_score, frequent_answers
from .questions import Question, QuestionTokenizer, read_questions

Stamps = tuple[tuple[str, int, int], ...]


# Results are cached until a file has another time or size.
def _stamps(paths: Sequence[str]) -> Stamps:
    stats = ((path, Path(path).stat()) for path in paths)
    return tuple((path, stat.st_mtime_ns, stat.st_size) for path, stat in stats)


@lru_cache(maxsize=8)
def _read_answers(stamps: Stamps, min_answers: int, num_answers: int | None, normalize: bool) -> tuple[str, ...]:
    questions = [question for path, *_ in stamps for question in read_questions(path)]
    answers = frequent_answers(questions, min_answers, num_answers, normalize)
    if not answers:
        raise ValueError(f'no answer of at least {min_answers} questions; see answer_files and min_answers')
    print_log(f'answers: {len(answers):,} of at least {min_answers} of {len(questions):,} questions', 'current')
    return tuple(answers)


@lru_cache(maxsize=8)
def _read_symbols(
    stamps: Stamps, tokens: str, answers: tuple[str, ...] | None, normalize: tuple[bool, bool]
) -> tuple[str, ...]:
    questions = [question for path, *_ in stamps for question in read_questions(path)]
    if answers is not None:
        index = AnswerIndex(answers, *normalize)
        questions = [question for question in questions if index.samples(question)]
    words = question_words((question.question for question in questions), tokens)
    print_log(f'vocabulary of questions: {len(words):,} words of {len(questions):,} questions', 'current')
    return tuple(words)


@DATASETS.register_module()
class VQADataset(TextDataset):
    """Questions about images, with the features of regions or with pictures.

    The data set counts words and answers in the prepared files. Its ``metainfo`` contains both, ``max_regions`` and
    ``region_source``, and so do checkpoints. A word that does not occur in ``vocab_files`` is unknown. A faulty file
    raises a ValueError that lists all faults, such as a question twice, or images that have no regions or no picture.

    A training sample has the score of each answer, or one answer that is drawn each time. With the samplers of mmattn,
    the drawn answer depends only on seed and position. A test sample has the published answers.

    Args:
        ann_file (str or sequence of str): files of :func:`mmattn.language.vqa.questions.read_questions`, or one file.
        regions (str or object, optional): path of a region store, or a store, as in
            :class:`mmattn.language.captioning.COCOCaptionDataset`. An image may have no region.
        region_source (str or sequence of str, optional): parts that the source of the region store must contain, such
            as the name of the converter or of the config of the backbone. Another store is a fault. A store without
            source passes. Defaults to None, any.
        images (str, optional): folder of the pictures, such as ``<image_id>.jpg``, in place of ``regions``.
        vocab_files (sequence of str, optional): files whose words make the vocabulary. Defaults to ``ann_file``.
        answer_files (sequence of str, optional): files whose majority answers are counted. Defaults to ``ann_file``.
        tokens (str): 'ban' (default), 'mcan' or 'skip-thought', see
            :class:`mmattn.language.vqa.questions.QuestionTokenizer`.
        max_words (int, optional): longer questions are cut. Defaults to 14, and to 26 for 'skip-thought'.
        min_answers (int): number of questions that an answer must have. Defaults to 9.
        num_answers (int, optional): keep only the most frequent answers. Defaults to None, no limit.
        target (str): 'soft' (bilinear attention network) is the score of each answer, min(1, 0.3 count), or 1 for a
            single answer. 'sampled' (MUTAN) is an answer, drawn in proportion to its count. It leaves out training
            questions whose majority answer cannot be given, and their words. Defaults to 'soft'.
        normalize_answers (bool): normalise the majority answers as the official evaluation does. Set False for data
            sets with one answer per question. Defaults to True.
        normalize_counts (bool): also normalise the ten answers before they are counted, as MCAN's code. Defaults to
            False, as the code of the bilinear attention network.
        extra_files (sequence of str): files of further training questions, such as Visual Genome, used if their answer
            can be given. Defaults to none.
        max_regions (int, optional): use only the regions with the best scores, and regions without class, such as the
            whole image. Without scores, use the first regions. Defaults to None, all.
        fraction (float): train on only this part of the questions, above 0, spread evenly over each file. Words and
            answers are still counted in all questions. Defaults to 1.
        indices (int or sequence of int, optional): use these questions, see :func:`select_indices`. Defaults to None.
        test_mode (bool): samples for tests. Answers may be absent from the whole file. Defaults to False.
        data_root (str): folder of the files. Defaults to '', the working directory.

    Example:
        >>> from types import SimpleNamespace
        >>> from mmattn.language.vqa.questions import write_questions
        >>> question = Question(7, '42', 'What is this?', ['dog'] * 2 + ['puppy'] * 8, 'puppy')
        >>> write_questions('questions_train.json', [question])
        >>> store = {'42': SimpleNamespace(features=torch.zeros(9, 16), boxes=None, size=(640, 480))}
        >>> data = VQADataset('questions_train.json', store, min_answers=1, max_words=5)
        >>> data.metainfo['answers'], data[0]['inputs']['question'], data[0]['inputs']['targets']
        (['puppy'], tensor([6, 4, 5, 1, 1]), tensor([1.]))
    """

    def __init__(
        self,
        ann_file: str | Sequence[str],
        regions: Any = None,
        images: str | None = None,
        *,
        region_source: str | Sequence[str] | None = None,
        vocab_files: Sequence[str] | None = None,
        answer_files: Sequence[str] | None = None,
        tokens: str = 'ban',
        max_words: int | None = None,
        min_answers: int = 9,
        num_answers: int | None = None,
        target: str = 'soft',
        normalize_answers: bool = True,
        normalize_counts: bool = False,
        extra_files: Sequence[str] = (),
        max_regions: int | None = None,
        fraction: float = 1.0,
        indices: Indices = None,
        test_mode: bool = False,
        data_root: str = '',
    ) -> None:
        find_rule(tokens)
        check_count('min_answers', min_answers)
        if num_answers is not None:
            check_count('num_answers', num_answers)
        check_choice('target', target, ('soft', 'sampled'))
        if (regions is None) == (images is None):
            raise ValueError('exactly one of regions and images must be set')
        if max_regions is not None:
            check_count('max_regions', max_regions)
        check_fraction('fraction', fraction)
        if not fraction:
            raise ValueError('fraction must be above 0; got 0')
        self.max_regions, self.test_mode, self._target = max_regions, test_mode, target
        regions, images = in_folder(data_root, regions, images)
        ann_files = [ann_file] if isinstance(ann_file, str) else ann_file
        groups = ann_files, vocab_files or ann_files, answer_files or ann_files, () if test_mode else extra_files
        paths, words, answers, extra = (in_folder(data_root, *group) for group in groups)
        faults = Faults()
        files = self._read([*paths, *extra], faults)
        self.image_ids = [*dict.fromkeys(question.image_id for path in files for question in files[path])]
        self._reads_pictures, self._image_folder = images is not None, str(images or regions)
        with faults.catch(self._image_folder):
            if images is None:
                self._images: Any = self._open_regions(regions, region_source, paths[0], faults)
            else:
                self._images = self._find_pictures(images, files, faults)
        with faults.catch(answers[0]):
            self.answers = list(_read_answers(_stamps(answers), min_answers, num_answers, normalize_answers))
            asked = tuple(self.answers) if target == 'sampled' else None
            with faults.catch(words[0]):
                symbols = list(_read_symbols(_stamps(words), tokens, asked, (normalize_answers, normalize_counts)))
        if faults:  # those of the other files, too
            for path in sorted({*words, *answers} - {*paths, *extra}):
                with faults.catch(path):
                    read_questions(path)
        faults.check()
        self.tokenizer = QuestionTokenizer(symbols, tokens, max_words)
        self.vocabulary = self.tokenizer.vocabulary
        self.metainfo = dict(symbols=symbols, answers=self.answers, tokens=tokens, max_words=self.tokenizer.max_words)
        self.sources = dict(symbols=words[0], answers=answers[0], tokens=paths[0], max_words=paths[0])
        self.needs = dict(vocab_size=(len(self.vocabulary), words[0]), num_answers=(len(self.answers), answers[0]))
        if isinstance(self._images, RegionStore):
            self.needs['num_features'] = (self._images.num_features, self._image_folder)
        if not self._reads_pictures:
            self.metainfo.update(max_regions=max_regions, region_source=region_source)
        self._unspaced = {path: unspaced_fault([question.question for question in files[path]]) for path in files}
        index = AnswerIndex(self.answers, normalize_answers, normalize_counts)
        chosen = [self._choose(path, files[path], index, fraction, path not in paths) for path in files]
        questions = select_indices([question for part in chosen for question in part], indices)
        if not questions:
            part = f', or fraction={fraction} is too small' if fraction < 1 and not test_mode else ''
            raise FaultsError(', '.join(paths), f'no question is left: no majority answer can be given{part}')
        if self._reads_pictures:
            width, height = read_picture(self._images[questions[0].image_id]).shape[:0:-1]
            self.metainfo['picture_size'] = [width, height]
        self._pack(questions, index)

    def _read(self, paths: Sequence[str], faults: Faults) -> dict[str, list[Question]]:
        files = {}
        places: dict[int, str] = {}
        for path in paths:
            with faults.catch(path):
                files[path] = read_questions(path)
                if not self.test_mode and not files[path][0].answers:
                    faults.add(path, 'no answers, which training requires')
                for question in files[path] if self.test_mode else ():  # the metric counts each question once
                    if (other := places.setdefault(question.question_id, path)) != path:
                        faults.add(path, f'question {question.question_id}: also in {other}')
        return files

    def _open_regions(self, regions: Any, source: str | Sequence[str] | None, path: str, faults: Faults) -> Any:
        store = open_store(regions)
        check_images(store, regions, path, self.image_ids, faults, allow_empty=True)
        if isinstance(store, RegionStore):
            hint = "(regions='FOLDER' for another store, region_source=None for any)"
            faults.add(regions, *(f'{fault} {hint}' for fault in store.source_faults(source)))
        return store

    def _find_pictures(self, folder: str, files: dict[str, list[Question]], faults: Faults) -> dict[str, Path]:
        pictures = picture_paths(folder)
        for path, questions in files.items():
            faults.add(path, *missing_pictures(questions, pictures, folder))
        return pictures

    def _choose(
        self, path: str, questions: list[Question], index: AnswerIndex, fraction: float, is_extra: bool
    ) -> list[Question]:
        """Leave out the questions of a file that are not for training, and say how many."""
        if self.test_mode:
            if questions[0].answers:
                best = 100 * sum(map(index.best_score, questions)) / len(questions)
                print_log(f'{path}: the answers that can be given allow an accuracy of {best:.1f}', 'current')
            return questions
        if is_extra:
            trains = [bool(index.counts(question)) for question in questions]
        else:
            trains = [self._target == 'soft' or bool(index.samples(question)) for question in questions]
        evenly = [int((i + 1) * fraction) > int(i * fraction) for i in range(len(questions))]
        chosen = [question for question, *both in zip(questions, trains, evenly) if all(both)]
        without = sum(not index.counts(question) for question in questions)
        left_out = f', and {len(questions) - len(chosen):,} are left out' if len(chosen) < len(questions) else ''
        message = f'{len(chosen):,} of {len(questions):,} questions; {without:,} have no answer that can be given'
        print_log(f'{path}: {message}{left_out}', 'current')
        return chosen

    def _pack(self, questions: Sequence[Question], index: AnswerIndex) -> None:
        """Keep the questions in a few arrays, which the processes of a loader share."""
        counts = [index.counts(question) for question in questions]
        self._numbers = PackedSequences(self.tokenizer.numbers(question.question) for question in questions)
        self._labels = PackedSequences(map(list, counts))
        self._answer_counts = PackedSequences(list(counted.values()) for counted in counts)
        self._answers = [question.answers for question in questions] if self.test_mode else None
        self.published = not self.test_mode or any(self._answers or ())
        self._num_humans = np.array([len(question.answers) for question in questions])
        self._questions = [question._replace(answers=[], answer='') for question in questions]

    def check_for_model(self, model: Any, faults: Faults) -> None:
        """Add the faults of regions, and what the model does not accept. Region features are not read.

        The model has ``num_features``, the width of the regions that it accepts, or None if it reads pictures, and
        ``num_answers``. An attribute that the model lacks is not compared.
        """
        super().check_for_model(model, faults)
        for path, fault in self._unspaced.items():
            faults.add(path, *([fault] if fault else []))
        reads_pictures = getattr(model, 'num_features', 0) is None
        if hasattr(model, 'num_features') and reads_pictures != self._reads_pictures:
            kinds = ('pictures', 'regions') if reads_pictures else ('regions', 'pictures')
            faults.add(self.sources['tokens'], f'the model reads {kinds[0]}, but the data set has {kinds[1]}')
        elif not self._reads_pictures:
            check_regions(self._images, self._image_folder, self.image_ids, faults, allow_empty=True)

    def __len__(self) -> int:
        return len(self._questions)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a sample: ``inputs`` and ``data_samples``.

        ``inputs`` has 'question', int64 ``(max_words)``, padded on the right. With regions, it has 'features', float32
        ``(N, D)``, and, if the store has them, 'boxes', float32 ``(N, 4)``, and 'sizes', width and height, int64
        ``(2)``. With pictures, it has 'image', float32 ``(3, H, W)``, RGB from 0 to 1. In training, it also has
        'targets', float32 ``(A)``, or 'answer', int64 ``()``.

        The data sample has ``question_id``, ``image_id``, ``question`` (the text), ``question_type``, ``answer_type``,
        ``size`` (width, height) and, in tests, ``answers``, possibly none. An unreadable picture raises a ValueError.
        """
        number = range(len(self))[index]
        question = self._questions[number]
        source = self._images[question.image_id]
        if self._reads_pictures:
            inputs = dict(image=read_picture(source))
            size = tuple(inputs['image'].shape[:0:-1])
        else:
            inputs, size = image_inputs(best_regions(source, self.max_regions)), source.size
        inputs['question'] = self.tokenizer.pad(self._numbers[number].tolist())
        about = question._asdict()
        sample = BaseDataElement(metainfo={name: about[name] for name in about if 'answers' != name != 'answer'})
        sample.set_metainfo(dict(size=size))
        if self._answers is not None:
            sample.answers = self._answers[number]
        else:
            labels, counts = self._labels[number], self._answer_counts[number].tolist()
            if self._target == 'soft':
                scores = [answer_score(count, int(self._num_humans[number])) for count in counts]
                inputs['targets'] = torch.zeros(len(self.answers)).index_put_((labels,), torch.tensor(scores))
            else:
                inputs['answer'] = torch.tensor(index_generator(index).choices(labels.tolist(), counts)[0])
        return dict(inputs=inputs, data_samples=sample)


def missing_pictures(questions: Sequence[Question], pictures: Collection[str], folder: str) -> list[str]:
    """List the images of questions that have no picture in the folder."""
    names = dict.fromkeys(question.image_id for question in questions)
    return [f'image {name}: no picture in {folder}' for name in names if name not in pictures]


def read_picture(path: Path) -> Tensor:
    """Read a picture as float32 ``(3, H, W)``, RGB from 0 to 1. A ValueError names an unreadable file."""
    with decoding(path), open(path, 'rb') as file:
        image = open_whole(file)
        if fault := deep_picture_fault(image):
            raise ValueError(fault)
        pixels = np.array(image.convert('RGB'))
    return torch.from_numpy(pixels).permute(2, 0, 1) / 255


def best_regions(regions: Regions, most: int | None) -> Regions:
    """Select the best regions of an image, at most ``most``, in their order. Regions without class are preferred."""
    count = len(regions.features)
    if most is None or count <= most:
        return regions
    chosen = torch.arange(most)  # without scores
    if regions.scores is not None:
        scores = regions.scores
        if regions.classes is not None:
            scores = scores.masked_fill(regions.classes < 0, torch.inf)
        chosen = scores.sort(descending=True, stable=True).indices[:most].sort().values
    fields: dict[str, Any] = {name: x[chosen] for name, x in regions._asdict().items() if isinstance(x, Tensor)}
    return regions._replace(**fields)
