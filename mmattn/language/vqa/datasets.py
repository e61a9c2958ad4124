"""Data set of visual questions with their answers, and with the features of regions or with pictures."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from mmengine.logging import print_log

from mmattn.language.regions.datasets import ImageTextDataset
from mmattn.language.regions.image_inputs import picture_paths
from mmattn.language.regions.region_store import RegionStore
from mmattn.language.text.words import find_rule, question_words
from mmattn.registry import DATASETS
from mmattn.utils.checks import check_choice, check_count, check_fraction
from mmattn.utils.faults import Faults, FaultsError

from .answers import AnswerIndex, frequent_answers
from .questions import Question, QuestionTokenizer, read_questions
from .transforms import read_picture

Stamps = tuple[tuple[str, int, int], ...]


def _stamps(paths: Sequence[str]) -> Stamps:
    stats = ((path, Path(path).stat()) for path in paths)
    return tuple((path, stat.st_mtime_ns, stat.st_size) for path, stat in stats)


@lru_cache(maxsize=8)  # the data sets of a run count the same files, until a file has another time or size
def _count(
    words: Stamps,
    answers: Stamps,
    tokens: str,
    sampled: bool,
    min_answers: int,
    num_answers: int | None,
    normalize: tuple[bool, bool],
) -> tuple[list[str], list[str]]:
    """Count the words and the answers of files."""
    files = {path: read_questions(path) for path, *_ in dict.fromkeys((*answers, *words))}
    answered = [question for path, *_ in answers for question in files[path]]
    frequent = frequent_answers(answered, min_answers, num_answers, normalize[0])
    if not frequent:
        raise FaultsError(
            answers[0][0], f'no answer of at least {min_answers} questions; see answer_files, min_answers'
        )
    print_log(f'answers: {len(frequent):,} of at least {min_answers} of {len(answered):,} questions', 'current')
    index = AnswerIndex(frequent, *normalize)
    asked = [question for path, *_ in words for question in files[path] if not sampled or index.samples(question)]
    symbols = question_words((question.question for question in asked), tokens)
    print_log(f'vocabulary of questions: {len(symbols):,} words of {len(asked):,} questions', 'current')
    return symbols, frequent


@DATASETS.register_module()
class VQADataset(ImageTextDataset):
    """Questions about images, with the features of regions or with pictures.

    The data set counts words and answers in the prepared files. Its ``metainfo`` contains both, ``max_regions`` and
    ``region_source``, and so do checkpoints. A word that does not occur in ``vocab_files`` is unknown. A faulty file
    raises a ValueError that lists its faults, such as a question twice, or images that have no regions or no picture.

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
        **options: those of mmengine's ``BaseDataset``, such as ``data_root``, the folder of the files, ``indices`` and
            ``test_mode``, for samples of tests, whose answers may be absent from the whole file. ``pipeline`` defaults
            to :meth:`default_pipeline`.

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

    paths = *ImageTextDataset.paths, 'images', 'vocab_files', 'answer_files', 'extra_files'

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
        **options: Any,
    ) -> None:
        find_rule(tokens)
        check_count('min_answers', min_answers)
        for name, number in dict(num_answers=num_answers, max_regions=max_regions).items():
            if number is not None:
                check_count(name, number)
        check_choice('target', target, ('soft', 'sampled'))
        if (regions is None) == (images is None):
            raise ValueError('exactly one of regions and images must be set')
        check_fraction('fraction', fraction)
        if not fraction:
            raise ValueError('fraction must be above 0; got 0')
        ann_files = [ann_file] if isinstance(ann_file, str) else list(ann_file)
        self.images, self.region_source, self.max_regions = images, region_source, max_regions
        self.vocab_files, self.answer_files = vocab_files or ann_files, answer_files or ann_files
        self.extra_files = () if options.get('test_mode') else extra_files
        self.tokens, self.max_words, self.target, self.fraction = tokens, max_words, target, fraction
        self.min_answers, self.num_answers = min_answers, num_answers
        self.normalize_answers, self.normalize_counts = normalize_answers, normalize_counts
        super().__init__(ann_files, regions, **options)

    def default_pipeline(self) -> list[dict]:
        """Load the regions or the picture, and convert the question and, in training, its answers to numbers."""
        kinds = ['LoadRegions' if self.images is None else 'LoadPicture', 'EncodeQuestion']
        kinds += [] if self.test_mode else ['AnswerTargets']
        return [dict(type=f'mmattn.{kind}') for kind in (*kinds, 'PackText')]

    def load_data_list(self) -> list[dict]:
        """Read the questions, and count words and answers."""
        files = self._read_files()
        normalize = self.normalize_answers, self.normalize_counts
        symbols, answers = _count(
            _stamps(self.vocab_files),
            _stamps(self.answer_files),
            self.tokens,
            self.target == 'sampled',
            self.min_answers,
            self.num_answers,
            normalize,
        )
        meta = dict(symbols=symbols, answers=answers, tokens=self.tokens, max_words=self.max_words) | self._metainfo
        self.tokenizer = QuestionTokenizer(meta['symbols'], meta['tokens'], meta['max_words'])
        self.vocabulary, self.answers = self.tokenizer.vocabulary, meta['answers']
        index = AnswerIndex(self.answers, *normalize)
        first, words, counted = self.ann_file[0], self.vocab_files[0], self.answer_files[0]
        self.sources = dict(symbols=words, answers=counted, tokens=first, max_words=first)
        self.needs = dict(vocab_size=(len(self.vocabulary), words), num_answers=(len(self.answers), counted))
        self.shared.update(tokenizer=self.tokenizer, answer_index=index, target=self.target)
        pictures = self._find_images(files)
        chosen = [question for path in files for question in self._choose(path, files[path], index)]
        if not chosen:
            part = f', or fraction={self.fraction} is too small' if self.fraction < 1 and not self.test_mode else ''
            raise FaultsError(', '.join(self.ann_file), f'no question is left: no majority answer can be given{part}')
        self.published = not self.test_mode or any(question.answers for question in chosen)
        entries = [question._asdict() for question in chosen]
        if pictures is None:
            own = dict(max_regions=self.max_regions, region_source=self.region_source)
        else:
            for entry in entries:
                entry['img_path'] = str(pictures[entry['image_id']])
            own = dict(picture_size=[*read_picture(entries[0]['img_path']).shape[:0:-1]])
        self._metainfo = meta | own | dict(max_words=self.tokenizer.max_words)
        return entries

    def _read_files(self) -> dict[str, list[Question]]:
        files, faults = {}, Faults()
        places: dict[int, str] = {}
        for path in (*self.ann_file, *self.extra_files):
            files[path] = read_questions(path)
            self._check_spaces(path, [question.question for question in files[path]])
            if not self.test_mode and not files[path][0].answers:
                faults.add(path, 'no answers, which training requires')
            for question in files[path] if self.test_mode else ():  # the metric counts each question once
                if (other := places.setdefault(question.question_id, path)) != path:
                    faults.add(path, f'question {question.question_id}: also in {other}')
        faults.check()
        return files

    def _find_images(self, files: dict[str, list[Question]]) -> dict[str, Path] | None:
        """Open the region store, or find the pictures, of which each image of a question must have one."""
        self.image_ids = [*dict.fromkeys(question.image_id for path in files for question in files[path])]
        faults = Faults()
        if self.images is not None:
            pictures = picture_paths(self.images)
            for path, questions in files.items():
                faults.add(path, *missing_pictures(questions, pictures, self.images))
            faults.check()
            return pictures
        self._open_regions(self.ann_file[0], self.image_ids, allow_empty=True)
        self.shared['max_regions'] = self.max_regions
        if isinstance(self.store, RegionStore):
            hint = "(regions='FOLDER' for another store, region_source=None for any)"
            faults.add(self.regions, *(f'{fault} {hint}' for fault in self.store.source_faults(self.region_source)))
        faults.check()
        return None

    def _choose(self, path: str, questions: list[Question], index: AnswerIndex) -> list[Question]:
        """Leave out the questions of a file that are not for training, and say how many."""
        if self.test_mode:
            if questions[0].answers:
                best = 100 * sum(map(index.best_score, questions)) / len(questions)
                print_log(f'{path}: the answers that can be given allow an accuracy of {best:.1f}', 'current')
            return questions
        given = [bool(index.counts(question.answers)) for question in questions]
        if path not in self.ann_file:  # further questions
            trains = given
        else:
            trains = [self.target == 'soft' or index.samples(question) for question in questions]
        evenly = [int((i + 1) * self.fraction) > int(i * self.fraction) for i in range(len(questions))]
        chosen = [question for question, *both in zip(questions, trains, evenly) if all(both)]
        left_out = f', and {len(questions) - len(chosen):,} are left out' if len(chosen) < len(questions) else ''
        message = (
            f'{len(chosen):,} of {len(questions):,} questions; {given.count(False):,} have no answer that can be given'
        )
        print_log(f'{path}: {message}{left_out}', 'current')
        return chosen

    def check_for_model(self, model: Any, faults: Faults) -> None:
        """Add the faults of text and regions, and what the model does not accept. Region features are not read.

        The model has ``num_features``, the width of the regions that it accepts, or None if it reads pictures, and
        ``num_answers``. An attribute that the model lacks is not compared.
        """
        super().check_for_model(model, faults)
        reads = 'pictures' if getattr(model, 'num_features', 0) is None else 'regions'
        has = 'regions' if self.images is None else 'pictures'
        if hasattr(model, 'num_features') and reads != has:
            faults.add(self.sources['tokens'], f'the model reads {reads}, but the data set has {has}')


def missing_pictures(questions: Sequence[Question], pictures: Collection[str], folder: str) -> list[str]:
    """List the images of questions that have no picture in the folder."""
    names = dict.fromkeys(question.image_id for question in questions)
    return [f'image {name}: no picture in {folder}' for name in names if name not in pictures]
