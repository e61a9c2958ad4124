"""Answer questions about images with a trained model, from the features of their regions or from their pixels."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.logging import print_log
from PIL import Image
from torch import Tensor, nn

from mmattn.language.inferencer import Batch, LanguageInferencer, plain, read_pairs
from mmattn.language.regions.image_inputs import Stores, image_inputs, picture_paths, region_store, store_files
from mmattn.language.regions.loading import best_regions
from mmattn.language.regions.region_store import RegionStore
from mmattn.language.text.vocabulary import SPECIALS
from mmattn.utils.checks import check_count
from mmattn.utils.faults import Faults
from mmattn.utils.resumable import digest

from .answers import best_answers
from .datasets import missing_pictures
from .mcan import MCAN
from .questions import Question, QuestionTokenizer, read_questions
from .transforms import read_picture
from .vqa_model import VQAModel


class AskedQuestion(NamedTuple):
    """A question with the store that has the regions of its image, or with the path of its picture.

    At most ``max_regions`` regions are read, as by :class:`VQADataset`.
    """

    question: Question
    images: RegionStore | Path
    max_regions: int | None = None

    def inputs(self, tokenizer: QuestionTokenizer) -> dict[str, Tensor]:
        """Load what a model reads, as :class:`VQADataset` does in tests."""
        question = tokenizer(self.question.question)
        if isinstance(self.images, Path):
            return dict(image=read_picture(self.images), question=question)
        regions = best_regions(self.images[self.question.image_id], self.max_regions)
        return dict(image_inputs(regions), question=question)


class VQAInferencer(LanguageInferencer):
    """Answer questions about the images of a region store, or about pictures.

    The model is a :class:`VQAModel` or :class:`MCAN`, trained with :class:`VQADataset`. A model with an image encoder
    reads pictures, which must have the size of its training pictures. Other models read at most as many regions as in
    training, and warn of a store from another ``region_source`` than that of the training. The arguments are as in
    :class:`mmattn.language.inferencer.LanguageInferencer`. ``answers`` are all answers of the model.

    An unknown word is read as in training, as padding or ``<unk>``, and predictions list it. A question without a word
    is answered from the image and the frequencies of the answers.

    Example::

        ask = VQAInferencer('config.py', 'epoch_13.pth')
        ask('data/mine/regions', [('42', 'What is this?')])['predictions'][0]['answer']
    """

    model: VQAModel | MCAN
    model_types = (VQAModel, MCAN)
    meta_keys = ('symbols', 'answers', 'tokens', 'max_words')
    dataset = 'mmattn.VQADataset'

    def __call__(  # type: ignore[override]
        self,
        inputs: Stores,
        questions: Sequence[tuple[str, str]] | str | Path,
        top_k: int = 5,
        progress_file: str | Path | None = None,
        resume: bool = True,
    ) -> dict[str, list[dict]]:
        """Answer questions.

        Args:
            inputs (str, Path, sequence of them, or RegionStore): folder of a region store, folders of several, or a
                store. For a model that reads pictures, their folder. The id of a picture is its file name without
                suffix.
            questions (sequence of tuple[str, str], str or Path): pairs of image id and question, at least one, or a
                prepared file, see :func:`mmattn.language.vqa.questions.read_questions`.
            top_k (int): number of answers per question, at least 1. Defaults to 5.
            progress_file, resume: as in :class:`mmattn.language.inferencer.LanguageInferencer`.

        Returns:
            dict: 'predictions', one dict per question, in their order:

            * question_id (int): from the file, or the index of the pair.
            * image_id (str) and question (str).
            * answer (str) and score (float): the best answer, and its probability.
            * answers (list[dict]): up to ``top_k`` answers with answer and score, the best first.
            * unknown (list[str]): the words that are not in the vocabulary.
            * unread (list[str]): the words after the first ``max_words``, which the model does not read.
        """
        top_k = plain(top_k)
        check_count('top_k', top_k)
        asked_questions = self.questions(inputs, questions)
        settings = dict(batch_size=self.batch_size, **_run_settings(asked_questions))
        batches = self.preprocess(asked_questions)
        answers = self._run(batches, 'Answers', progress_file, resume, {}, dict(top_k=top_k), **settings)
        about = [self._describe(asked_question.question) for asked_question in asked_questions]
        return dict(predictions=[description | answers[i] for i, description in enumerate(about)])

    def questions(self, inputs: Stores, questions: Sequence[tuple[str, str]] | str | Path) -> list[AskedQuestion]:
        """Look up the questions of a call, with its arguments, after all checks that do not run the model."""
        if isinstance(questions, str | Path):
            listed = read_questions(questions)
        else:
            listed = [Question(index, *pair) for index, pair in enumerate(read_pairs('questions', questions))]
        if self.reads_pictures:
            if not isinstance(inputs, str | Path):
                raise TypeError(f'inputs must be a folder: this model reads pictures; got {inputs!r}')
            pictures = picture_paths(str(inputs))
            Faults(inputs, missing_pictures(listed, pictures, str(inputs))).check()
            asked_questions = [AskedQuestion(question, pictures[question.image_id]) for question in listed]
            _check_sizes(inputs, asked_questions, self.meta.get('picture_size'))
            return asked_questions
        store = region_store(inputs)
        names = [question.image_id for question in listed]
        for fault in store.source_faults(self.meta.get('region_source')):
            print_log(f'{", ".join(map(str, store.paths))}: {fault}', 'current', logging.WARNING)
        store.check(names, self.model.num_features, features=False, allow_empty=True)
        # Older checkpoints record neither the source nor the number of the regions.
        return [AskedQuestion(question, store, self.meta.get('max_regions')) for question in listed]

    @torch.no_grad()
    def forward(self, inputs: Batch) -> Tensor:  # type: ignore[override]
        """Score all answers for a batch: ``(B, A)``."""
        batch = self._collated([asked_question.inputs(self.tokenizer) for asked_question in inputs.inputs])
        return torch.stack([sample.pred_scores for sample in self.model(batch, mode='predict')])

    def postprocess(self, preds: Tensor, top_k: int) -> list[dict]:  # type: ignore[override]
        """Select the best answers by the scores of all answers, as :meth:`__call__` without the questions."""
        predictions = []
        for scores in preds.cpu():
            answers = [dict(zip(('answer', 'score'), pair)) for pair in best_answers(scores, self.answers, top_k)]
            predictions.append(dict(answers[0], answers=answers))
        return predictions

    def visualize(  # type: ignore[override]
        self, inputs: AskedQuestion, picture: np.ndarray | None = None, top_k: int = 5
    ) -> np.ndarray:
        """Draw the attention with which the model answers a question: uint8 ``(height, width, 3)``, RGB.

        See :func:`mmattn.language.vqa.attention_pictures.draw_question_attention`. The model must return attention
        weights, and the image must have a region.

        Args:
            inputs (AskedQuestion): the question, from :meth:`questions`.
            picture (np.ndarray, optional): uint8 ``(H, W, 3)``, RGB, the image, possibly reduced. Defaults to the
                picture that the model reads, or to a white one.
            top_k (int): number of answers, at least 1. Defaults to 5.
        """
        from .attention_pictures import draw_answer_attention  # late: it imports matplotlib

        text, sample = inputs.question.question, inputs.inputs(self.tokenizer)
        return draw_answer_attention(self.model, sample, text, self.tokenizer, self.answers, picture, top_k)

    @property
    def reads_pictures(self) -> bool:
        """Whether the model reads pictures in place of regions."""
        return self.model.num_features is None

    def _describe(self, question: Question) -> dict[str, Any]:
        return dict(
            question_id=question.question_id,
            image_id=question.image_id,
            question=question.question,
            unknown=[word for word in self.tokenizer.words(question.question) if word not in self._known],
            unread=self.tokenizer.unread(question.question),
        )

    def _read_meta(self) -> None:
        self.tokenizer = QuestionTokenizer(self.meta['symbols'], self.meta['tokens'], self.meta['max_words'])
        self.vocabulary, self.answers = self.tokenizer.vocabulary, list(self.meta['answers'])
        self._known = {*self.vocabulary.symbols[len(SPECIALS) :]}

    def _load_weights_to_model(self, model: nn.Module, checkpoint: dict | None, cfg: Any) -> None:
        super()._load_weights_to_model(model, checkpoint, cfg)
        if len(self.answers) != model.num_answers:
            raise ValueError(
                f'{self.weights}: dataset_meta has {len(self.answers)} answers, but num_answers of the model is '
                f'{model.num_answers}'
            )


def _check_sizes(folder: Any, asked_questions: Sequence[AskedQuestion], trained: Sequence[int] | None) -> None:
    faults = Faults()
    # A batch needs pictures of one size. Older checkpoints do not record the size of the training pictures.
    first = trained and ('the training', tuple(trained))
    for path in dict.fromkeys(asked.images for asked in asked_questions):
        assert isinstance(path, Path)
        try:
            with Image.open(path) as picture:
                size = picture.size
        except OSError as error:
            faults.add(path, f'unreadable: {error}')
            continue
        first = first or (path.name, size)
        if size != first[1]:
            sizes = ['×'.join(map(str, pair)) for pair in (size, first[1])]
            faults.add(path, f'{sizes[0]} pixels, but {first[0]} has {sizes[1]}')
    faults.check()


def _run_settings(asked_questions: Sequence[AskedQuestion]) -> dict[str, Any]:
    source = asked_questions[0].images
    if isinstance(source, Path):
        paths = dict.fromkeys(asked.images for asked in asked_questions)
        stats = [path.stat() for path in paths if isinstance(path, Path)]
        images: Any = digest([[stat.st_size, stat.st_mtime_ns] for stat in stats])
    else:
        images = store_files(source)
    questions = digest([asked.question for asked in asked_questions])
    return dict(questions=questions, images=images, max_regions=asked_questions[0].max_regions)
