"""Translation of text with a trained model: raw text in, raw text out."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.logging import print_log

from mmattn.language.inferencer import Batch, SentenceInferencer, plain
from mmattn.language.models.generation import Hypothesis
from mmattn.language.text.batching import token_batches
from mmattn.language.text.subwords import TextProcessor, undo_bpe, unmark
from mmattn.language.text.text_files import read_lines
from mmattn.utils.checks import check_count
from mmattn.utils.faults import shorten
from mmattn.utils.resumable import digest

from .transformer import TranslationTransformer, longest

Inputs = str | Path | Sequence[str]


class TranslationInferencer(SentenceInferencer):
    """Translate raw text of any length.

    The checkpoint contains languages, tokenizer options, subword codes and vocabulary, so no folder of data is read.
    Sentences of similar lengths share a batch. The longest come first, so that a lack of memory shows at once.

    Args:
        model, weights, device, show_progress: as in :class:`mmattn.language.inferencer.LanguageInferencer`. The
            model is a :class:`TranslationTransformer`, trained with :class:`ParallelTextDataset`.
        amp (bool): as in :class:`mmattn.language.inferencer.LanguageInferencer`. Defaults to False.
        batch_tokens (int): most pieces of a batch, with ``</s>`` and padding. Defaults to 4096.

    Example::

        translate = TranslationInferencer('configs/bi_sa/bi-sa_tiny_1xb4096_multi30k-en-de.py', 'average.pth')
        translate('A man in an orange hat.')['predictions'][0]['text']
        translate(Path('sentences.en'), beam=10, n_best=3)
    """

    model: TranslationTransformer
    model_types = (TranslationTransformer,)
    meta_keys = ('source', 'target', 'lowercase', 'moses', 'symbols', 'codes')
    dataset = 'mmattn.ParallelTextDataset'

    def __init__(
        self,
        model: str | Path | Config,
        weights: str | Path,
        device: str | None = None,
        batch_tokens: int = 4096,
        show_progress: bool = True,
        amp: bool = False,
    ) -> None:
        check_count('batch_tokens', batch_tokens)
        self.batch_tokens = batch_tokens
        super().__init__(model, weights, device, show_progress=show_progress, amp=amp)

    def __call__(  # type: ignore[override]
        self,
        inputs: Inputs,
        beam: int | None = None,
        length_penalty: float | None = None,
        n_best: int = 1,
        max_source_length: int = 250,
        progress_file: str | Path | None = None,
        resume: bool = True,
        name: str = 'inputs',
    ) -> dict[str, list[dict]]:
        """Translate text. A sentence without a piece, such as an empty line, has the empty translation with score 0.

        Args:
            inputs (str, Path or sequence of str): a sentence, a UTF-8 text file (as ``Path``) with one sentence per
                line, or sentences.
            beam, length_penalty, n_best, progress_file, resume: as in
                :class:`mmattn.language.inferencer.SentenceInferencer`.
            max_source_length (int): the most pieces of a sentence, without ``</s>``. Defaults to 250.
            name (str): name of the input in messages, if it is not a file. Defaults to 'inputs'.

        Returns:
            dict: 'predictions', one dict per sentence, in the order of the input:

            * text (str): the translation, detokenized.
            * score (float): its log-probability, divided by the length penalty.
            * pieces (list[str]): its subword pieces, without ``</s>``.
            * n_best (list[dict]): up to ``n_best`` translations with text and score, the best first.
            * unknown (list[str]): the pieces of the sentence that the vocabulary does not have, without ``@@``.
        """
        n_best = plain(n_best)
        options = self._options(beam, length_penalty, n_best)
        check_count('max_source_length', max_source_length)
        lines = self._inputs_to_list(inputs)
        name = str(inputs) if isinstance(inputs, Path) else name
        batches = self.preprocess(lines, max_source_length, name)
        settings = dict(batch_tokens=self.batch_tokens, input=digest(lines))
        sources = {index: pieces for batch in batches for index, pieces in zip(batch.indices, batch.inputs)}
        unknown = {
            index: [unmark(piece.removesuffix('@@')) for piece in sources[index] if piece not in self.vocabulary]
            for index in sorted(sources)
        }
        named = [f'line {i + 1} ({" ".join(dict.fromkeys(pieces))})' for i, pieces in unknown.items() if pieces]
        if named:
            message = 'the vocabulary does not have these characters or pieces, which are read as <unk>'
            print_log(f'{name}: {message}: {", ".join(shorten(named, 10))}', 'current', logging.WARNING)
        predictions = self._run(batches, 'Translation', progress_file, resume, options, dict(n_best=n_best), **settings)
        most = self.model.test_cfg['max_length']
        long = [i + 1 for i in unknown if len(predictions[i]['pieces']) >= longest(most, len(sources[i]))]
        if long:
            message = f'the translations of {len(long):,} lines have the most pieces that test_cfg.max_length of the '
            message += f'model allows, and may be cut: {", ".join(shorten(long, 10))}'
            print_log(f'{name}: {message}', 'current', logging.WARNING)
        return dict(
            predictions=[
                dict(predictions.get(index) or _prediction([]), unknown=unknown.get(index, []))
                for index in range(len(lines))
            ]
        )

    def preprocess(  # type: ignore[override]
        self, inputs: Sequence[str], max_source_length: int, name: str
    ) -> list[Batch]:
        """Divide sentences into batches of subword pieces, without ``</s>``, the longest sentences first.

        Sentences without a piece are in no batch. ``max_source_length`` and ``name`` are as in :meth:`__call__`.
        """
        for number, line in enumerate(inputs, 1):
            if re.search('[\r\n]', line.strip()):
                raise ValueError(
                    f'{name}, line {number}: a line break within a sentence; the sentences of a list, or the lines of '
                    r'a file, which end in \n or \r\n, are translated one by one'
                )
        pieces = [self.pipeline(line) for line in inputs]
        for number, sentence in enumerate(pieces, 1):
            if len(sentence) > max_source_length:
                raise ValueError(
                    f'{name}, line {number}: a sentence of {len(sentence)} pieces, but max_source_length is '
                    f'{max_source_length}: divide the line into sentences, or raise max_source_length'
                )
            if len(sentence) + 1 > self.batch_tokens:
                raise ValueError(
                    f'{name}, line {number}: batch_tokens must be at least {len(sentence) + 1}, the pieces of this '
                    f'sentence with the end token; got {self.batch_tokens}'
                )
        indices = [index for index, sentence in enumerate(pieces) if sentence]
        batches = token_batches([(len(pieces[index]) + 1,) for index in indices], self.batch_tokens)
        batches = [[indices[position] for position in batch] for batch in reversed(batches)]
        return [Batch(batch, [pieces[index] for index in batch]) for batch in batches]

    @torch.no_grad()
    def forward(self, inputs: Batch, **options: Any) -> list[list[Hypothesis]]:  # type: ignore[override]
        """Translate a batch into hypotheses per sentence. ``options`` replace ``test_cfg``."""
        source = [torch.tensor(self.vocabulary.encode(' '.join(sentence))) for sentence in inputs.inputs]
        data = self.model.data_preprocessor(dict(inputs=dict(source=source)), False)
        return self.model.translate(data['inputs']['source'], **options)

    def postprocess(  # type: ignore[override]
        self, preds: Sequence[Sequence[Hypothesis]], n_best: int
    ) -> list[dict]:
        """Convert the hypotheses of sentences, the best first, to predictions as in :meth:`__call__`."""
        predictions = []
        for hypotheses in preds:
            symbols = self.vocabulary.symbols
            pieces = [[symbols[number] for number in hypothesis.tokens] for hypothesis in hypotheses[:n_best]]
            texts = [self._target.detokenize(undo_bpe(' '.join(translation))) for translation in pieces]
            predictions.append(_prediction([*zip(texts, (hypothesis.score for hypothesis in hypotheses))], pieces[0]))
        return predictions

    def visualize(  # type: ignore[override]
        self, inputs: str, pieces: Sequence[str], layer: int | None = None
    ) -> np.ndarray:
        """Draw the attention between a sentence and its translation, as :func:`draw_sentence_attention`.

        Args:
            inputs (str): the raw sentence.
            pieces (sequence of str): 'pieces' of its prediction, or of another translation.
            layer (int, optional): number of the layer in encoder and decoder, from 1. Defaults to the last.
        """
        from .attention_pictures import draw_sentence_attention, sentence_attention  # late: it imports matplotlib

        read = self.pipeline(inputs)
        if not read:
            raise ValueError(f'inputs must have at least one piece; got {inputs!r}')
        device = next(self.model.parameters()).device
        source, target = (
            torch.tensor(self.vocabulary.encode(' '.join(sentence)), device=device) for sentence in (read, pieces)
        )
        attention = sentence_attention(self.model, source, target, layer)
        return draw_sentence_attention(attention, [*read, '</s>'], [*pieces, '</s>'])

    def _read_meta(self) -> None:
        super()._read_meta()
        common = dict(lowercase=self.meta['lowercase'], **self.meta['moses'])
        self._source = TextProcessor(self.meta['source'], self.meta['codes'], **common)
        self._target = TextProcessor(self.meta['target'], None, **common)

    def _init_pipeline(self, cfg: Any) -> Any:
        return self._source.pieces

    def _inputs_to_list(self, inputs: Inputs) -> list[str]:  # type: ignore[override]
        if isinstance(inputs, Path):
            return read_lines(inputs)
        if isinstance(inputs, str) and os.path.isfile(inputs):
            raise TypeError(f'inputs must be a sentence, or the Path of a file; {inputs!r} is a file: Path({inputs!r})')
        lines = [inputs] if isinstance(inputs, str) or not isinstance(inputs, Sequence) else list(inputs)
        wrong = [type(line).__name__ for line in lines if not isinstance(line, str)]
        if wrong:
            raise TypeError(f'inputs must be a str, a Path or a sequence of str; got {wrong[0]}')
        return lines


def _prediction(n_best: Sequence[tuple[str, float]], pieces: Sequence[str] = ()) -> dict:
    translations = [dict(text=text, score=score) for text, score in n_best or [('', 0.0)]]
    return dict(translations[0], pieces=list(pieces), n_best=translations)
