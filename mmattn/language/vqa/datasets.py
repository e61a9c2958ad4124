"""Data sets of visual questions with their answers, and with the features of regions or with pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.logging import print_log
from mmengine.structures import BaseDataElement
from torch import Tensor

from mmattn.engine.data_sampling import index_generator
from mmattn.language.regions.image_inputs import (
    image_inputs,
    open_store,
    picture_paths,
    warn_of_shared_images,
    with_region_faults,
)
from mmattn.language.regions.region_store import Regions, RegionStore
from mmattn.language.text.annotation_files import in_folder
from mmattn.language.text.text_dataset import Indices, PackedSequences, TextDataset, select_indices
from mmattn.language.text.vocabulary import Vocabulary
from mmattn.language.text.words import find_rule, question_words, unspaced_fault
from mmattn.registry import DATASETS
from mmattn.utils.checks import check_choice, check_count, check_number
from mmattn.utils.faults import collect_faults, difference, raise_faults
from mmattn.utils.images import decoding, deep_picture_fault, open_whole

from .answers import AnswerIndex, answer_score, frequent_answers
from .questions import Question, QuestionTokenizer, read_questions

MIN_ANSWERS = 9
Stamps = tuple[tuple[str, int, int], ...]


class Recipe(NamedTuple):
    """The arguments of :class:`VQADataset` that decide its words and answers."""

    ann_file: str | Sequence[str]
    vocab_files: Sequence[str] | None = None
    answer_files: Sequence[str] | None = None
    tokens: str = 'ban'
    min_answers: int = MIN_ANSWERS
    num_answers: int | None = None
    target: str = 'soft'
    normalize_answers: bool = True
    normalize_counts: bool = False
    data_root: str = ''

    @classmethod
    def of(cls, cfg: Mapping[str, Any]) -> Recipe:
        """Select the recipe from the config of a data set."""
        return cls(**{name: cfg[name] for name in cls._fields if name in cfg})

    def files(self) -> tuple[list[str], list[str], list[str]]:
        """List three groups of paths: question files, files for the vocabulary, and files whose answers are counted."""
        questions = [self.ann_file] if isinstance(self.ann_file, str) else self.ann_file
        groups = (questions, self.vocab_files or questions, self.answer_files or questions)
        return tuple(in_folder(self.data_root, *group) for group in groups)  # type: ignore[return-value]

    def check(self) -> None:
        """Check the options."""
        find_rule(self.tokens)
        check_count('min_answers', self.min_answers)
        if self.num_answers is not None:
            check_count('num_answers', self.num_answers)
        check_choice('target', self.target, ('soft', 'sampled'))

    def answers(self) -> list[str]:
        """Read the answers that a model can give. A missing or faulty file is an error, and so is an empty list."""
        options = self.min_answers, self.num_answers, self.normalize_answers
        return list(_read_answers(_stamps(self.files()[2]), *options))

    def symbols(self) -> list[str]:
        """Read the words of the questions, without those that training with sampled answers leaves out."""
        answers = tuple(self.answers()) if self.target == 'sampled' else None
        normalize = self.normalize_answers, self.normalize_counts
        return list(_read_symbols(_stamps(self.files()[1]), self.tokens, answers, normalize))


# Results are cached until a file has another time or size.
def _stamps(paths: Sequence[str]) -> Stamps:
    stats = ((path, Path(path).stat()) for path in paths)
    return tuple((path, stat.st_mtime_ns, stat.st_size) for path, stat in stats)


@lru_cache(maxsize=8)
def _read_answers(stamps: Stamps, min_answers: int, num_answers: int | None, normalize: bool) -> tuple[str, ...]:
    questions = [question for path, *_ in stamps for question in read_questions(path)]
    answers = frequent_answers(questions, min_answers, num_answers, normalize)
    if not answers:
        paths = ', '.join(path for path, *_ in stamps)
        raise ValueError(f'{paths}: no answer of at least {min_answers} questions; see answer_files and min_answers')
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

    The data set counts words and answers in the prepared files. Its ``metainfo`` contains both, and so do checkpoints.
    A word that does not occur in ``vocab_files`` is unknown. A faulty file raises a ValueError that lists all faults,
    such as a question twice, or images that have no regions or no picture.

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
        fraction (float): train on only this part of the questions, spread evenly over each file. Words and answers are
            still counted in all questions. Defaults to 1.
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
        max_words: int | None = None,
        extra_files: Sequence[str] = (),
        max_regions: int | None = None,
        fraction: float = 1.0,
        test_mode: bool = False,
        indices: Indices = None,
        region_source: str | Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        recipe = Recipe(ann_file, **options)
        recipe.check()
        if (regions is None) == (images is None):
            raise ValueError('exactly one of regions and images must be set')
        if max_regions is not None:
            check_count('max_regions', max_regions)
        check_number('fraction', fraction, 0, 1)
        self.max_regions, self.test_mode, self._target = max_regions, test_mode, recipe.target
        regions, images = in_folder(recipe.data_root, regions, images)
        paths = recipe.files()[0]
        self.answers, symbols = recipe.answers(), recipe.symbols()
        self.tokenizer = QuestionTokenizer(symbols, recipe.tokens, max_words)
        self.vocabulary = self.tokenizer.vocabulary
        about = dict(tokens=recipe.tokens, max_words=self.tokenizer.max_words)
        self.metainfo = dict(symbols=symbols, answers=self.answers, **about)
        self._places: Any = picture_paths(images) if images is not None else open_store(regions)
        self._pictures = images is not None
        if isinstance(self._places, RegionStore):
            raise_faults(regions, self._places.source_faults(region_source))
        self._questions: list[Question] = []
        index = AnswerIndex(self.answers, recipe.normalize_answers, recipe.normalize_counts)
        for path in [*paths, *([] if test_mode else in_folder(recipe.data_root, *extra_files))]:
            questions = read_questions(path)
            raise_faults(path, image_faults(questions, self._places, images))
            kept = None
            if not test_mode:
                if not questions[0].answers:
                    raise ValueError(f'{path}: no answers, which training requires')
                if path not in paths:
                    kept = [bool(index.counts(question)) for question in questions]
                else:
                    kept = [recipe.target == 'soft' or index.samples(question) for question in questions]
                kept = [keep and int((i + 1) * fraction) > int(i * fraction) for i, keep in enumerate(kept)]
            if kept is not None or questions[0].answers:
                _report(path, questions, index, kept)
            self._questions += questions if kept is None else compress(questions, kept)
        self._questions = select_indices(self._questions, indices)
        if not self._questions:
            raise ValueError(f'{", ".join(paths)}: no question is left: no majority answer can be given')
        if self._pictures:
            width, height = read_picture(self._places[self._questions[0].image_id]).shape[:0:-1]
            self.metainfo['picture_size'] = [width, height]
        counts = [index.counts(question) for question in self._questions]
        self._numbers = PackedSequences(self.tokenizer.numbers(question.question) for question in self._questions)
        self._labels = PackedSequences(map(list, counts))
        self._counts = PackedSequences(list(counted.values()) for counted in counts)
        self._answers = [question.answers for question in self._questions] if test_mode else None
        self.published = not test_mode or any(self._answers or ())
        self._given = np.array([len(question.answers) for question in self._questions])
        self._questions = [question._replace(answers=[], answer='') for question in self._questions]

    @classmethod
    def vocabulary_source(cls, cfg: dict) -> tuple[Path, Any]:
        """Locate the first file of the vocabulary, or a missing one, and return it with the vocabulary's options."""
        recipe = Recipe.of(cfg)
        _, words, answers = (list(map(Path, paths)) for paths in recipe.files())
        used = [*words, *answers] if recipe.target == 'sampled' else words
        options = recipe._replace(ann_file='')
        return next((path for path in used if not path.is_file()), words[0]), (words, options)

    @classmethod
    def read_vocabulary(cls, cfg: dict) -> Vocabulary:
        """Read the vocabulary of a data set with this config."""
        recipe = Recipe.of(cfg)
        recipe.check()
        return Vocabulary(recipe.symbols())

    @classmethod
    def checkpoint_faults(cls, cfg: dict, meta: Mapping[str, Any]) -> list[str]:
        """Compare the answers and the splitting of words with a checkpoint."""
        recipe = Recipe.of(cfg)
        ours = dict(tokens=recipe.tokens, max_words=cfg.get('max_words') or find_rule(recipe.tokens).max_words)
        faults = [
            f'{name} is {mine!r}, but {meta[name]!r} in the checkpoint'
            for name, mine in ours.items()
            if meta.get(name, mine) != mine
        ]
        answers = tuple(recipe.answers())
        other = tuple(meta.get('answers', answers))
        return faults + ([f'{difference("answer", answers, other)} in the checkpoint'] if answers != other else [])

    @classmethod
    def find_faults(cls, cfgs: Sequence[dict], model: Any) -> dict[str, list[str]]:
        """Find the faults of data sets, and what does not fit the model, by path. Region features are not read.

        The model has ``num_features``, the width of the regions that it accepts, or None if it reads pictures, and
        ``num_answers``. An attribute that the model lacks is not compared.
        """
        faults: dict[str, list[str]] = {}
        files: dict[str, list[Question]] = {}
        images: dict[str, list[str]] = {}  # by region store
        sources: dict[str, list[Any]] = {}
        read: dict[bool, list[str]] = {False: [], True: []}  # by test_mode
        reads_pictures = getattr(model, 'num_features', 0) is None
        for cfg in cfgs:
            recipe, test_mode = Recipe.of(cfg), cfg.get('test_mode', False)
            regions, pictures = in_folder(recipe.data_root, cfg.get('regions'), cfg.get('images'))
            extra = [] if test_mode else in_folder(recipe.data_root, *cfg.get('extra_files', ()))
            paths, words, answers = recipe.files()
            for path in dict.fromkeys([*paths, *extra, *words, *answers]):
                if path not in files and path not in faults:
                    with collect_faults(faults, path):
                        files[path] = read_questions(path)
            used = [path for path in (*paths, *extra) if path in files]
            image_ids = [question.image_id for path in used for question in files[path]]
            read[test_mode] += image_ids
            for path in used:
                if fault := unspaced_fault([question.question for question in files[path]]):
                    faults.setdefault(path, []).append(fault)
                if not test_mode and not files[path][0].answers:
                    faults.setdefault(path, []).append('no answers, which training requires')
            if all(path in files for path in answers):
                with collect_faults(faults, answers[0]):
                    count, expected = len(recipe.answers()), getattr(model, 'num_answers', None)
                    if expected not in (None, count):
                        message = f'{count:,} answers, but the model has {expected:,}'
                        faults.setdefault(answers[0], []).append(f'{message} (--cfg-options model.num_answers={count})')
            if hasattr(model, 'num_features') and reads_pictures != (pictures is not None):
                kinds = ('pictures', 'regions') if reads_pictures else ('regions', 'pictures')
                message = f'the model reads {kinds[0]}, but the data set has {kinds[1]}'
                faults.setdefault(paths[0], []).append(message)
            elif pictures is not None:
                with collect_faults(faults, pictures):
                    places = picture_paths(pictures)
                    for path in used:
                        faults.setdefault(path, []).extend(image_faults(files[path], places, pictures))
            elif isinstance(regions, str):
                images.setdefault(regions, []).extend(image_ids)
                sources.setdefault(regions, []).append(cfg.get('region_source'))
        warn_of_shared_images(read[False], read[True])
        return with_region_faults(faults, images, getattr(model, 'num_features', None), True, sources)

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
        source = self._places[question.image_id]
        if self._pictures:
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
            labels, counts = self._labels[number], self._counts[number].tolist()
            if self._target == 'soft':
                scores = [answer_score(count, int(self._given[number])) for count in counts]
                inputs['targets'] = torch.zeros(len(self.answers)).index_put_((labels,), torch.tensor(scores))
            else:
                inputs['answer'] = torch.tensor(index_generator(index).choices(labels.tolist(), counts)[0])
        return dict(inputs=inputs, data_samples=sample)


def _report(path: str, questions: list[Question], index: AnswerIndex, kept: list[bool] | None) -> None:
    total = len(questions)
    if kept is None:
        best = 100 * sum(map(index.best_score, questions)) / total
        print_log(f'{path}: the answers that can be given allow an accuracy of {best:.1f}', 'current')
        return
    without = sum(not index.counts(question) for question in questions)
    left_out = f', and {kept.count(False):,} are left out' if not all(kept) else ''
    message = f'{sum(kept):,} of {total:,} questions; {without:,} have no answer that can be given{left_out}'
    print_log(f'{path}: {message}', 'current')


def image_faults(questions: Sequence[Question], places: Any, images: str | None) -> list[str]:
    """List the images of questions that have no regions, or no picture in the folder ``images``."""
    where = 'not in the region store' if images is None else f'no picture in {images}'
    names = dict.fromkeys(question.image_id for question in questions)
    return [f'image {name}: {where}' for name in names if name not in places]


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
