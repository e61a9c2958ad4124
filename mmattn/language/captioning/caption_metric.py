"""BLEU, METEOR, ROUGE-L, CIDEr-D and SPICE of captions, as in the evaluation of COCO captions."""

from __future__ import annotations

import logging
import math
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.logging import print_log

from mmattn.language.text.vocabulary import Vocabulary
from mmattn.language.text.words import normalize_unicode
from mmattn.language.unique_metric import UniqueMetric
from mmattn.registry import METRICS
from mmattn.utils.checks import check_choice
from mmattn.utils.optional import import_optional

from .annotations import caption_words
from .cider import CiderD

# Tokens of the tokenizer that the evaluation leaves out.
LEFT_OUT = {"''", "'", '``', '`', '-LRB-', '-RRB-', '-LCB-', '-RCB-', '.', '?', '!', ',', ':', '-', '--', '...', ';'}


def java_command(jar: str) -> list[str]:
    """Build the command that starts the Java program ``jar`` of the package pycocoevalcap.

    Raises an ImportError without the package, and a FileNotFoundError without ``java`` on the PATH or the program.
    """
    path = Path(next(iter(import_optional('pycocoevalcap').__path__)), jar)
    java = shutil.which('java')
    if java is None:
        raise FileNotFoundError('java: not on the PATH; a Java runtime (8 or later) is required')
    if not path.is_file():
        raise FileNotFoundError(f'{path}: no such file; reinstall pycocoevalcap')
    return [java, '-cp', str(path)]


@contextmanager
def english_java() -> Iterator[None]:
    """Start Java programs in English: METEOR writes numbers in the user's language, perhaps with a decimal comma."""
    options = os.environ.get('JAVA_TOOL_OPTIONS')
    english = '-Duser.language=en -Duser.language.format=en'
    os.environ['JAVA_TOOL_OPTIONS'] = english if options is None else f'{options} {english}'
    try:
        yield
    finally:
        del os.environ['JAVA_TOOL_OPTIONS']
        if options is not None:
            os.environ['JAVA_TOOL_OPTIONS'] = options


def ptb_words(texts: Sequence[str]) -> list[list[str]]:
    """Split captions into words by Stanford's PTBTokenizer 3.4.1, as the evaluation of COCO captions does.

    The program takes about a second to start, so pass all captions in one call. Raises a RuntimeError if the program
    fails. For a missing program, see :func:`java_command`.
    """
    command = java_command('tokenizer/stanford-corenlp-3.4.1.jar')
    command += ['edu.stanford.nlp.process.PTBTokenizer', '-preserveLines', '-lowerCase']
    command += ['-encoding', 'UTF-8']
    lines = [' '.join(normalize_unicode(text).split()) for text in texts]  # a line of input is a line of output
    done = subprocess.run(command, input=''.join(f'{line}\n' for line in lines).encode(), capture_output=True)
    outputs = done.stdout.decode(errors='replace').split('\n')[:-1]
    if done.returncode or len(outputs) != len(lines):
        message = done.stderr.decode(errors='replace').strip()[-500:]
        raise RuntimeError(f'PTBTokenizer returned {len(outputs)} lines for {len(lines)} captions: {message}')
    return [[word for word in line.split() if word not in LEFT_OUT] for line in outputs]


Words = Sequence[str]
NO_CIDER = (
    'CIDEr-D of {} images is not a number: it weighs words by the images that they tell apart, and all n-grams of the '
    "references are in all images. save_best='CIDEr-D' chooses no checkpoint: set BLEU-4, or validate on more images"
)


def caption_bleu(hypotheses: Sequence[Words], references: Sequence[Sequence[Words]]) -> tuple[np.ndarray, np.ndarray]:
    """Compute BLEU-1 to BLEU-4 from 0 to 1: float64 ``(4)`` for the corpus, and ``(I, 4)`` for its I captions.

    BLEU-n is the geometric mean of the clipped precisions (m + 1e-15)/(t + 1e-9) of 1- to n-grams, where m of t n-grams
    match, times the brevity penalty e^(1 - r/c) if c < r. c is the length of the caption, and r the closest length of a
    reference, the shorter one of two. For the corpus, all counts and lengths are summed. Each caption is a sequence of
    words, and ``references`` has one or more per hypothesis.

    Example:
        >>> corpus, captions = caption_bleu(['a cat on a mat'.split()], [['a cat sits on a mat'.split()]])
        >>> corpus.round(4).tolist()
        [0.8187, 0.709, 0.5158, 0.0001]
    """
    check_references(references)
    counts = np.array([_counts(*pair) for pair in zip(hypotheses, references, strict=True)], np.float64).reshape(-1, 10)
    return _bleu(counts.sum(0)), _bleu(counts)


def check_references(references: Sequence[Sequence[Words]]) -> None:
    """Check that there is a caption, and that every caption has a reference."""
    if not references or not all(map(len, references)):
        empty = [i for i, captions in enumerate(references) if not len(captions)]
        raise ValueError(f'references must have at least one caption per hypothesis; got none for {empty or "any"}')


def _counts(hypothesis: Words, references: Sequence[Words]) -> list[int]:
    matches = []
    for n in range(1, 5):
        most: Counter[tuple[str, ...]] = Counter()
        for reference in references:
            most |= _ngrams(reference, n)
        matches.append((_ngrams(hypothesis, n) & most).total())
    length = len(hypothesis)
    closest = min((abs(len(reference) - length), len(reference)) for reference in references)[1]
    # n-grams for each n, matching n-grams for each n, words, and words of the closest reference
    return [*(max(0, length - n) for n in range(4)), *matches, length, closest]


def _ngrams(words: Words, n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[i:] for i in range(n))))


def _bleu(counts: np.ndarray) -> np.ndarray:
    precisions = (counts[..., 4:8] + 1e-15) / (counts[..., :4] + 1e-9)
    ratio = (counts[..., 8:9] + 1e-15) / (counts[..., 9:] + 1e-9)
    return precisions.cumprod(-1) ** (1 / np.arange(1, 5)) * np.exp(np.minimum(0, 1 - 1 / ratio))


def rouge_l(hypothesis: Words, references: Sequence[Words], beta: float = 1.2) -> float:
    """Compute ROUGE-L of a caption, from 0 to 1: (1 + β²) P R / (R + β² P).

    P is the length of the longest common subsequence divided by the length of the hypothesis. For R it is divided by
    the length of the reference. P and R are the maxima over all references, possibly of different ones. ``beta`` is β.
    The caption and its references are sequences of words.

    Example:
        >>> round(rouge_l('a cat on a mat'.split(), ['a cat sits on a mat'.split()]), 4)
        0.8944
    """
    check_references([references])
    hypothesis = hypothesis or ['']  # a caption without words has the empty word, as in the evaluation of COCO
    pairs = [(_common(hypothesis, reference or ['']), len(reference) or 1) for reference in references]
    precision = max(common for common, _ in pairs) / len(hypothesis)
    recall = max(common / length for common, length in pairs)
    return (1 + beta**2) * precision * recall / (recall + beta**2 * precision) if precision else 0.0


def _common(first: Words, second: Words) -> int:
    previous = [0] * (len(second) + 1)  # lengths of the longest common subsequences
    for word in first:
        row = [0]
        for i, other in enumerate(second):
            row.append(previous[i] + 1 if word == other else max(row[i], previous[i + 1]))
        previous = row
    return previous[-1]


def meteor(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, list[float]]:
    """Compute METEOR 1.5 of a corpus and of each caption, from 0 to 1, as the evaluation of COCO captions does.

    ``references`` has a sequence of captions per hypothesis. Words are separated by spaces. Raises a RuntimeError if
    the program fails. For a missing program, see :func:`java_command`.
    """
    java_command('meteor/meteor-1.5.jar')
    with english_java():
        scorer = import_optional('pycocoevalcap.meteor.meteor').Meteor()
    try:
        return scorer.compute_score(
            {i: [text.replace('|||', ' ') for text in captions] for i, captions in enumerate(references)},
            {i: [text] for i, text in enumerate(hypotheses)},
        )
    except (OSError, ValueError) as error:  # the program has ended
        scorer.meteor_p.kill()
        errors = scorer.meteor_p.communicate()[1].decode(errors='replace')
        raise RuntimeError(f'METEOR failed: {error} {errors.strip()[-500:]}') from error
    finally:
        if scorer.lock.locked():  # after an error; the scorer would wait for itself when it is deleted
            scorer.lock.release()


def check_spice() -> None:
    """Check that SPICE can run. It needs what :func:`java_command` needs, and models in the package's folder.

    Missing models raise a FileNotFoundError with the command that downloads them.
    """
    *_, jar = java_command('spice/spice-1.0.jar')
    for name in ('stanford-corenlp-3.6.0.jar', 'stanford-corenlp-3.6.0-models.jar'):
        if not (path := Path(jar).parent / 'lib' / name).is_file():
            raise FileNotFoundError(
                f'{path}: no such file; download it by `python -m pycocoevalcap.spice.get_stanford_models`'
            )


def spice(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """Compute SPICE of each caption, from 0 to 1, by the scorer of pycocoevalcap. Arguments: see :func:`meteor`.

    The scorer takes up to 8 GB of memory, and writes a cache to the folder of the package.
    """
    check_spice()
    scorer = import_optional('pycocoevalcap.spice.spice').Spice()
    with english_java():
        _, scores = scorer.compute_score(
            dict(enumerate(map(list, references))), {i: [x] for i, x in enumerate(hypotheses)}
        )
    return [score['All']['f'] for score in scores]


@METRICS.register_module()
class CaptionMetric(UniqueMetric):
    """BLEU-1 to BLEU-4, METEOR, ROUGE-L, CIDEr-D and SPICE of captions, as in the evaluation of COCO captions.

    'BLEU-1' to 'BLEU-4' and 'METEOR' are computed over the corpus. 'ROUGE-L', 'CIDEr-D' and 'SPICE' are means over
    images. All are times 100, as in the papers' tables. CIDEr-D takes its document frequencies from the evaluated
    references. It is NaN, with a warning, if all n-grams of the references are in all images, such as in a single one.

    Papers split words by Stanford's PTBTokenizer. The tokenizer and METEOR 1.5 are Java programs of the package
    pycocoevalcap. Without Java or this package, :func:`mmattn.language.captioning.caption_words` splits words, METEOR
    is absent, and a warning says why. The two tokenizers differ in a few captions per thousand, and the log names the
    one used. SPICE also requires models that are not in the package, so it is computed only with ``use_spice``.

    Images without references, as in the test set of COCO's server, have no figures, but can be written to a file.

    Args:
        tokenizer (str): 'PTB' (an error if absent), 'simple' (our own rule) or 'auto' (default), 'PTB' if it runs.
        use_meteor (bool): compute METEOR with the tokenizer 'PTB'. It starts in about ten seconds. Defaults to True.
        output_dir (str, optional): output folder, as ``tools/test.py --out`` sets it. ``captions.json`` has the
            format of COCO's server, ``[{"image_id": 42, "caption": "a dog"}, …]``. Ids that are not integers are
            written as strings. ``scores.json`` has the scores of each image for paired statistics,
            ``{"tokenizer": "PTB", "scores": {image id: {"BLEU-1": 50.0, …}}}``. Defaults to None, no files.
        use_spice (bool): compute SPICE, with the tokenizer 'PTB'. An error says what is missing, such as models that
            ``python -m pycocoevalcap.spice.get_stanford_models`` downloads. Defaults to False.
        **kwargs: as in :class:`mmattn.language.unique_metric.UniqueMetric`.

    Example:
        >>> metric = CaptionMetric(tokenizer='simple')
        >>> metric.dataset_meta = dict(symbols=['a', 'cat', 'dog', 'runs'])
        >>> for name, tokens in ('1', [4, 5]), ('2', [4, 6, 7]):
        ...     metric.process({}, [dict(image_id=name, pred_tokens=tokens, captions=['A cat runs.', 'A dog runs.'])])
        >>> metric.evaluate(2)['BLEU-2']
        81.87...
    """

    metric_names = (*(f'BLEU-{n}' for n in range(1, 5)), 'METEOR', 'ROUGE-L', 'CIDEr-D', 'SPICE')
    key = 'image_id'

    def __init__(
        self,
        tokenizer: str = 'auto',
        use_meteor: bool = True,
        output_dir: str | None = None,
        use_spice: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(output_dir, **kwargs)
        check_choice('tokenizer', tokenizer, ('auto', 'PTB', 'simple'))
        self.missing = ''  # why the programs cannot run
        try:
            java_command('tokenizer/stanford-corenlp-3.4.1.jar')
        except (ImportError, FileNotFoundError) as error:
            if tokenizer == 'PTB':
                raise
            self.missing = str(error)
        self.tokenizer = tokenizer if tokenizer != 'auto' else 'simple' if self.missing else 'PTB'
        self.use_meteor = use_meteor
        if use_spice:
            if tokenizer == 'simple':
                raise ValueError("use_spice requires the tokenizer 'PTB'; got 'simple'")
            check_spice()
        self.use_spice = use_spice

    def process(self, data_batch: dict, data_samples: Sequence[dict]) -> None:
        """Keep ``image_id``, ``pred_tokens`` (with or without ``</s>``) and the references ``captions`` of a batch."""
        vocabulary = Vocabulary((self.dataset_meta or {})['symbols'])
        for sample in data_samples:
            self.results.append(
                dict(
                    image_id=sample['image_id'],
                    caption=vocabulary.decode(int(number) for number in sample['pred_tokens']),
                    captions=list(sample['captions']),
                )
            )

    def compute_metrics(self, results: list[dict]) -> dict[str, float]:
        """Compute the figures by name, times 100, or none without references. Write the requested files."""
        ids = coco_ids([result['image_id'] for result in results])
        self.write('captions.json', [dict(image_id=i, caption=result['caption']) for i, result in zip(ids, results)])
        without = [result['image_id'] for result in results if not result['captions']]
        if without:
            print_log(f'no figures: {len(without)} images without references, such as {without[0]}', 'current')
            return {}
        hypotheses, references = self._words(results)
        bleu, image_bleu = caption_bleu(hypotheses, references)
        by_image = {f'BLEU-{n}': list(image_bleu[:, n - 1]) for n in range(1, 5)}
        figures = {f'BLEU-{n}': float(bleu[n - 1]) for n in range(1, 5)}
        texts = [' '.join(words) for words in hypotheses], [[*map(' '.join, captions)] for captions in references]
        if self._reports_meteor():
            figures['METEOR'], by_image['METEOR'] = meteor(*texts)
        by_image['ROUGE-L'] = [rouge_l(*pair) for pair in zip(hypotheses, references)]
        cider = CiderD(references)
        if cider.is_zero:
            print_log(NO_CIDER.format(len(results)), 'current', logging.WARNING)
            figures['CIDEr-D'] = math.nan
        else:
            by_image['CIDEr-D'] = list(cider.score(hypotheses, range(len(results))))
        if self.use_spice:
            by_image['SPICE'] = spice(*texts)
        figures.update((name, math.fsum(x) / len(results)) for name, x in by_image.items() if name not in figures)
        scores = {
            result['image_id']: {name: 100 * float(values[i]) for name, values in by_image.items()}
            for i, result in enumerate(results)
        }
        self.write('scores.json', dict(tokenizer=self.tokenizer, scores=scores))
        return {name: 100 * value for name, value in figures.items()}

    def _words(self, results: list[dict]) -> tuple[list[list[str]], list[list[list[str]]]]:
        texts = [text for result in results for text in (result['caption'], *result['captions'])]
        print_log(f'words of captions by the tokenizer {self.tokenizer!r}', 'current')
        words = iter(ptb_words(texts) if self.tokenizer == 'PTB' else map(caption_words, texts))
        captions = [[next(words) for _ in range(1 + len(result['captions']))] for result in results]
        return [group[0] for group in captions], [group[1:] for group in captions]

    def _reports_meteor(self) -> bool:
        if self.use_meteor and self.tokenizer == 'simple':
            reason = self.missing or "it requires the tokenizer 'PTB'"
            print_log(f'METEOR is absent: {reason}', 'current', logging.WARNING)
        return self.use_meteor and self.tokenizer == 'PTB'


def coco_ids(image_ids: Sequence[str]) -> list[int | str]:
    """Convert decimal ids of images to integers, as on COCO's server. If two would become equal, all ids stay strings.

    Example:
        >>> coco_ids(['42', 'dog']), coco_ids(['7', '007'])
        ([42, 'dog'], ['7', '007'])
    """
    ids = [int(name) if name.isdecimal() else name for name in image_ids]
    return ids if len(set(ids)) == len(set(image_ids)) else list(image_ids)
