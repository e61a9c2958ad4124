"""BLEU of translations, by sacreBLEU."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmengine.logging import print_log

from mmattn.language.text.subwords import TextProcessor, undo_bpe, unmark
from mmattn.language.text.vocabulary import SPECIALS
from mmattn.language.text.words import normalize_unicode, unspaced_script
from mmattn.language.unique_metric import UniqueMetric
from mmattn.registry import METRICS
from mmattn.utils.files import atomic_write
from mmattn.utils.optional import import_optional

UNKNOWN = re.compile(r'(?<!\S)<unk>(?!\S)')  # in references: as in fairseq, <unk> in a translation never matches it


def split_compounds(line: str) -> str:
    """Separate the parts of hyphenated words, as scripts of the English–German literature do before scoring.

    As in those scripts, a letter belongs to one hyphen: 'a-b-c' becomes 'a ##AT##-##AT## b-c'.
    """
    return re.sub(r'(\S)-(\S)', r'\1 ##AT##-##AT## \2', line)


def tokenized_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Any:
    """Score tokenized text by sacreBLEU: corpus BLEU-4 without smoothing, as ``multi-bleu.perl``.

    The tokens of translations and references, one reference per translation, are separated by spaces.
    """
    if not len(hypotheses) == len(references) > 0:
        raise ValueError(
            f'hypotheses and references must be of the same number, at least 1; got {len(hypotheses)} and '
            f'{len(references)}'
        )
    corpus_bleu = import_optional('sacrebleu').corpus_bleu
    return corpus_bleu(list(hypotheses), [list(references)], tokenize='none', smooth_method='none', force=True)


def build_sacrebleu(target: str, references: Sequence[str], lowercase: bool) -> Any:
    """Build sacreBLEU with the tokenizer of the target language, or of the script in which the references are written.

    The tokenizer 13a, and so the words of :func:`tokenized_bleu`, needs spaces between words. Text of another script
    is compared character by character.
    """
    sacrebleu = import_optional('sacrebleu')
    metric = sacrebleu.BLEU(lowercase=lowercase, trg_lang=target)
    script = unspaced_script(references)
    if metric.tokenizer_signature == '13a' and script:
        return sacrebleu.BLEU(lowercase=lowercase, tokenize='zh' if script == 'CJK' else 'char')
    return metric


@METRICS.register_module()
class BLEU(UniqueMetric):
    """Corpus BLEU of translations, as two figures that are not comparable with each other.

    * 'BLEU' is computed on tokenized text, as in the papers and by ``multi-bleu.perl``: subwords are joined, and there
      is no smoothing. It depends on the tokenizer and on the case of the data. Text that is written without spaces
      between words, such as Chinese, is divided by sacreBLEU's tokenizer.
    * 'sacreBLEU' is computed on detokenized text against the published reference ``<split>.raw.<language>``, if there
      is one, with sacreBLEU's tokenizer for the target language: 13a, or for Chinese and Cantonese zh. The log gives
      its signature. If the data are lower-cased, case is ignored.

    Args:
        compound_split (bool): for 'BLEU', separate the parts of hyphenated words on both sides, as in the literature on
            English–German, which raises the figure. Defaults to False.
        detokenized (bool): compute 'sacreBLEU'. Defaults to True.
        output_dir (str, optional): folder for ``translations.txt`` and ``n-best.txt``, with scores. Defaults to None.
        **kwargs: as in :class:`mmattn.language.unique_metric.UniqueMetric`.

    Example:
        >>> metric = BLEU()
        >>> metric.dataset_meta = dict(target='de', lowercase=True, symbols=['ein', 'hu@@', 'nd'])
        >>> metric.process({}, [dict(line=1, pred_tokens=[4, 5, 6], target='ein hu@@ nd', raw_target='Ein Hund')])
        >>> metric.evaluate(1)['sacreBLEU']
        0.0
    """

    metric_names = ('BLEU', 'sacreBLEU')
    key = 'line'

    def __init__(
        self, compound_split: bool = False, detokenized: bool = True, output_dir: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(output_dir, **kwargs)
        import_optional('sacrebleu')
        self.compound_split = compound_split
        self.detokenized = detokenized

    def process(self, data_batch: dict, data_samples: Sequence[dict]) -> None:
        """Keep the translations of a batch: samples of :class:`ParallelTextDataset` with ``pred_tokens``."""
        for sample in data_samples:
            hypotheses = sample.get('n_best') or [(sample['pred_tokens'], sample.get('pred_score', 0.0))]
            self.results.append(
                dict(
                    line=sample['line'],
                    n_best=[(self._text(tokens), score) for tokens, score in hypotheses],
                    target=undo_bpe(sample['target']),
                    raw_target=sample.get('raw_target'),
                )
            )

    def _text(self, tokens: Sequence[int]) -> str:
        symbols = (self.dataset_meta or {})['symbols']
        first = len(SPECIALS)
        return undo_bpe(' '.join(SPECIALS[n] if n < first else symbols[n - first] for n in tokens))

    def tokenized_pairs(self, results: list[dict]) -> tuple[list[str], list[str]]:
        """Collect the translations and references for 'BLEU', one per result."""
        hypotheses = [result['n_best'][0][0] for result in results]
        references = [UNKNOWN.sub('<<unk>>', result['target']) for result in results]
        meta: dict = self.dataset_meta or {}
        if meta.get('moses', {}).get('joins'):
            hypotheses, references = ([unmark(line) for line in lines] for lines in (hypotheses, references))
        metric = build_sacrebleu(meta['target'], references, meta['lowercase'])
        if metric.tokenizer_signature != '13a':
            hypotheses, references = ([*map(metric.tokenizer, lines)] for lines in (hypotheses, references))
        if self.compound_split:
            hypotheses, references = ([split_compounds(line) for line in lines] for lines in (hypotheses, references))
        return hypotheses, references

    def compute_metrics(self, results: list[dict]) -> dict[str, float]:
        """Compute 'BLEU' and, with a published reference, 'sacreBLEU', from 0 to 100. Write the requested files."""
        score = tokenized_bleu(*self.tokenized_pairs(results))
        print_log(f'tokenized: {score}', 'current')
        metrics = dict(BLEU=score.score)
        raw = [text and normalize_unicode(text) for text in (result['raw_target'] for result in results)]
        texts = [result['n_best'][0][0] for result in results]
        if self.detokenized and None not in raw:
            meta: dict = self.dataset_meta or {}
            processor = TextProcessor(meta['target'], None, meta['lowercase'], **meta.get('moses', {}))
            texts = [processor.detokenize(line) for line in texts]
            metric = build_sacrebleu(meta['target'], raw, meta['lowercase'])
            score = metric.corpus_score(texts, [raw])
            print_log(f'detokenized: {score}; signature {metric.get_signature()}', 'current')
            metrics['sacreBLEU'] = score.score
        if self.output_dir is not None:
            self._write(texts, results)
        return metrics

    def _write(self, texts: list[str], results: list[dict]) -> None:
        with atomic_write(Path(self.output_dir or '', 'translations.txt')) as temporary:
            temporary.write_bytes(''.join(f'{text}\n' for text in texts).encode())
        with atomic_write(Path(self.output_dir or '', 'n-best.txt')) as temporary:
            lines = [
                f'{result["line"]}\t{score:.6f}\t{text}\n' for result in results for text, score in result['n_best']
            ]
            temporary.write_bytes(''.join(lines).encode())
