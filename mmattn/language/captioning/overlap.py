"""BLEU and ROUGE-L of captions with several references, as in the evaluation of COCO captions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

Words = Sequence[str]


def caption_bleu(hypotheses: Sequence[Words], references: Sequence[Sequence[Words]]) -> tuple[np.ndarray, np.ndarray]:
    """Return BLEU-1 to BLEU-4 of a corpus, and of each caption.

    BLEU-n is the geometric mean of the clipped precisions (m + 1e-15)/(t + 1e-9) of 1- to n-grams, where m of t n-grams
    match, times the brevity penalty e^(1 - r/c) if c < r; r is the closest length of a reference, the shorter one of
    two.

    Args:
        hypotheses (sequence of sequence of str): the words of I captions.
        references (sequence of sequence of sequence of str): the words of the references of each.

    Returns:
        tuple[np.ndarray, np.ndarray]: float64 ``(4)`` and ``(I, 4)``, from 0 to 1.

    Example:
        >>> corpus, each = caption_bleu(['a cat on a mat'.split()], [['a cat sits on a mat'.split()]])
        >>> corpus.round(4).tolist()
        [0.8187, 0.709, 0.5158, 0.0001]
    """
    counts = np.array([_counts(*each) for each in zip(hypotheses, references, strict=True)], np.float64).reshape(-1, 10)
    return _bleu(counts.sum(0)), _bleu(counts)


def _counts(hypothesis: Words, references: Sequence[Words]) -> list[int]:
    """Return the number of n-grams and of those that match, for each n, the length and that of the reference."""
    matches = []
    for n in range(1, 5):
        most: Counter[tuple[str, ...]] = Counter()
        for reference in references:
            most |= _ngrams(reference, n)
        matches.append((_ngrams(hypothesis, n) & most).total())
    length = len(hypothesis)
    closest = min((abs(len(each) - length), len(each)) for each in references)[1]
    return [*(max(0, length - n) for n in range(4)), *matches, length, closest]


def _ngrams(words: Words, n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[i:] for i in range(n))))


def _bleu(counts: np.ndarray) -> np.ndarray:
    precisions = (counts[..., 4:8] + 1e-15) / (counts[..., :4] + 1e-9)
    ratio = (counts[..., 8:9] + 1e-15) / (counts[..., 9:] + 1e-9)
    return precisions.cumprod(-1) ** (1 / np.arange(1, 5)) * np.exp(np.minimum(0, 1 - 1 / ratio))


def rouge_l(hypothesis: Words, references: Sequence[Words], beta: float = 1.2) -> float:
    """Return ROUGE-L of a caption: (1 + β²) P R / (R + β² P).

    P and R are the length of the longest common subsequence divided by that of the hypothesis and of the reference, P
    the highest of all references, R also, possibly of another one.

    Args:
        hypothesis (sequence of str): the words of the caption.
        references (sequence of sequence of str): the words of its references.
        beta (float): β. Defaults to 1.2.

    Returns:
        float: from 0 to 1.

    Example:
        >>> round(rouge_l('a cat on a mat'.split(), ['a cat sits on a mat'.split()]), 4)
        0.8944
    """
    hypothesis = hypothesis or ['']  # a caption without words has the empty word, as in the evaluation of COCO
    pairs = [(_common(hypothesis, each or ['']), len(each) or 1) for each in references]
    precision = max(common for common, _ in pairs) / len(hypothesis)
    recall = max(common / length for common, length in pairs)
    return (1 + beta**2) * precision * recall / (recall + beta**2 * precision) if precision else 0.0


def _common(first: Words, second: Words) -> int:
    """Return the length of the longest common subsequence."""
    previous = [0] * (len(second) + 1)
    for word in first:
        row = [0]
        for i, other in enumerate(second):
            row.append(previous[i] + 1 if word == other else max(row[i], previous[i + 1]))
        previous = row
    return previous[-1]
