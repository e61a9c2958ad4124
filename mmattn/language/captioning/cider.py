"""CIDEr-D, the consensus of a caption with its references: the metric and the reward of self-critical training."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

Caption = Sequence[Hashable]  # words, or their numbers in a vocabulary
ORDERS = 4
SIGMA = 6.0
BITS = 32  # a pair of non-negative numbers in one int64
MASK = (1 << BITS) - 1


class CiderD:
    r"""CIDEr-D of captions, with the document frequencies of the references.

    For a hypothesis h and a reference r with Δ more or fewer bigrams, and the n-grams w of length n,

        CIDEr-D = 10 · mean over r and n = 1…4 of e^(−Δ²/72) · Σ_w min(g_h(w), g_r(w)) g_r(w) / (‖g_h‖ ‖g_r‖),
        g(w) = count(w) · (ln N − ln max(1, number of images whose references contain w)),

    where N is the number of images, and a quotient with a norm of 0 is 0. The references are converted once, so the
    scores of a batch take a few milliseconds. Δ counts bigrams as the evaluation code of COCO does.

    For a metric, pass the references of the evaluated images. For a reward, pass the references of the training images,
    and end all references and hypotheses with the end token. Without the end token, captions that end in "with a" have
    a high reward.

    Source: R. Vedantam, C. L. Zitnick, D. Parikh: "CIDEr: Consensus-based Image Description Evaluation", CVPR 2015.

    Args:
        references (sequence of sequence of captions): references of each image. A caption has words as str or int.

    Example:
        >>> references = [['a cat sits on a mat', 'the cat is on the mat'], ['a dog runs'], ['two birds fly']]
        >>> cider = CiderD([[each.split() for each in captions] for captions in references])
        >>> cider.score(['a cat on a mat'.split(), 'a dog runs'.split()], images=[0, 1]).round(4).tolist()
        [2.966, 7.5]
    """

    def __init__(self, references: Sequence[Sequence[Caption]]) -> None:
        counts = np.array([len(captions) for captions in references], dtype=np.int64)
        if not len(counts) or not counts.all():
            empty = np.flatnonzero(counts == 0)[:5].tolist()
            raise ValueError(f'references must have a caption of every image; got none of {empty or "any image"}')
        self.num_images = len(counts)
        self._first = np.append(0, counts.cumsum())  # index of the first reference of an image
        self._numbers: dict[Hashable, int] = {}
        captions = [caption for image_captions in references for caption in image_captions]
        words = [self._numbers.setdefault(word, len(self._numbers)) for caption in captions for word in caption]
        text = _Text(captions, words)
        image = np.repeat(np.arange(self.num_images), counts)
        self._bigrams = text.bigrams
        self._orders: list[_Order] = []
        number = np.zeros(len(words), np.int64)  # for each position, the number of the n-gram that starts there
        for n in range(ORDERS):
            positions, last = text.ngrams(n)
            keys, number[positions] = np.unique(number[positions] << BITS | last, return_inverse=True)
            row, gram, count = _count(text.caption[positions], number[positions])
            frequency = np.bincount(np.unique(image[row] << BITS | gram) & MASK, minlength=len(keys))
            weight = np.log(self.num_images) - np.log(frequency)
            norm = np.sqrt(np.bincount(row, (count * weight[gram]) ** 2, minlength=len(captions)))
            first = np.searchsorted(row, np.arange(len(captions) + 1))
            self._orders.append(_Order(keys, weight, first, gram.astype(np.int32), count.astype(np.int32), norm))

    def score(self, hypotheses: Sequence[Caption], images: Sequence[int]) -> np.ndarray:
        """Compute the CIDEr-D of each hypothesis, float64 ``(H)``, from 0 to 10.

        Args:
            hypotheses (sequence of captions): any number per image, in any order. A caption may be empty.
            images (sequence of int): image of each hypothesis, as an index of ``references``.
        """
        image = np.asarray(images, np.int64)
        if image.shape != (len(hypotheses),):
            raise ValueError(f'images must have one index per hypothesis, {len(hypotheses)}; got {image.shape}')
        if len(image) and not 0 <= image.min() <= image.max() < self.num_images:
            raise ValueError(f'images must be from 0 to {self.num_images - 1}; got {image.min()} to {image.max()}')
        new: dict[Hashable, int] = {}
        words = [
            self._numbers[word] if word in self._numbers else len(self._numbers) + new.setdefault(word, len(new))
            for caption in hypotheses
            for word in caption
        ]
        text = _Text(hypotheses, words)
        pairs = _ranges(self._first[image], self._first[image + 1])
        total = np.zeros(len(pairs[0]))
        # Numbers of the n-gram that starts at a position: among the hypotheses; among the references, or -1.
        number, in_references = np.zeros((2, len(words)), np.int64)
        for n, order in enumerate(self._orders):
            positions, last = text.ngrams(n)
            in_references[positions] = _find(order.keys, in_references[positions] << BITS | last)
            _, at, number[positions] = np.unique(
                number[positions] << BITS | last, return_index=True, return_inverse=True
            )
            row, gram, count = _count(text.caption[positions], number[positions])
            gram = in_references[positions[at]][gram]
            value = count * np.append(order.weight, np.log(self.num_images))[gram]  # -1: in no reference
            norm = np.sqrt(np.bincount(row, value**2, minlength=len(hypotheses)))
            total += order.similarity(row, gram, value, norm, *pairs)
        hypothesis, reference = pairs
        difference = text.bigrams[hypothesis] - self._bigrams[reference]
        total *= np.exp(-(difference**2) / (2 * SIGMA**2))
        return 10 / ORDERS * np.bincount(hypothesis, total, len(image)) / np.diff(self._first)[image]


class _Text:  # captions as one array of the numbers of their words
    def __init__(self, captions: Sequence[Caption], words: Sequence[int]) -> None:
        lengths = np.array([len(caption) for caption in captions], np.int64)
        self.words = np.array(words, np.int64)
        self.caption = np.repeat(np.arange(len(captions)), lengths)
        self.left = np.repeat(lengths.cumsum(), lengths) - np.arange(len(words))  # words to the end of the caption
        self.bigrams = np.maximum(lengths - 1, 0)

    def ngrams(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Locate n-grams of n + 1 words. Returns their start positions and their last words."""
        positions = np.flatnonzero(self.left > n)
        return positions, self.words[positions + n]


class _Order(NamedTuple):
    """N-grams of one length in R references, as sparse vectors in compressed rows."""

    keys: np.ndarray  # number of the first n - 1 words and the last word; sorted, so the index numbers the n-grams
    weight: np.ndarray  # ln N - ln frequency of an n-gram
    first: np.ndarray  # (R + 1), index of the first n-gram of a reference in the next two
    gram: np.ndarray
    counts: np.ndarray
    norm: np.ndarray  # (R)

    def similarity(
        self,
        row: np.ndarray,
        gram: np.ndarray,
        value: np.ndarray,
        norm: np.ndarray,
        mine: np.ndarray,
        theirs: np.ndarray,
    ) -> np.ndarray:
        """Compute the clipped cosine of hypothesis ``mine[p]`` and reference ``theirs[p]``, ``(P)``."""
        # Hypothesis row[i] has component value[i] at n-gram gram[i]. Hypothesis h has norm[h].
        keys = row << BITS | gram  # negative for an n-gram without a reference
        order = np.argsort(keys)
        pair, index = _ranges(self.first[theirs], self.first[theirs + 1])
        match = _find(keys[order], mine[pair] << BITS | self.gram[index])
        pair, index, match = (x[match >= 0] for x in (pair, index, match))
        component = self.counts[index] * self.weight[self.gram[index]]
        product = np.minimum(value[order[match]], component) * component
        norms = norm[mine] * self.norm[theirs]
        sums = np.bincount(pair, product, len(mine))
        return np.divide(sums, norms, out=np.zeros_like(norms), where=norms != 0)


def _count(rows: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    pairs, counts = np.unique(rows << BITS | numbers, return_counts=True)
    return pairs >> BITS, pairs & MASK, counts


def _find(keys: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Find the index of each number in the sorted ``keys``, or -1 for an absent number."""
    if not len(keys):
        return np.full(len(numbers), -1)
    index = np.minimum(np.searchsorted(keys, numbers), len(keys) - 1)
    return np.where(keys[index] == numbers, index, -1)


def _ranges(first: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate the ranges [first, last). Returns the range of each number, as an index, and the numbers."""
    lengths = last - first
    owner = np.repeat(np.arange(len(first)), lengths)
    return owner, np.arange(len(owner)) - np.repeat(lengths.cumsum() - lengths - first, lengths)
