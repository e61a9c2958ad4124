"""CIDEr-D, the consensus of a caption with its references: the metric and the reward of self-critical training."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mmattn.utils.optional import import_optional

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Caption = Sequence[Hashable]  # words, or their numbers in a vocabulary
ORDERS = 4
SIGMA = 6.0
BITS = 32  # a pair of non-negative numbers in one int64


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
            caption, gram = text.caption[positions], number[positions]
            in_images = _counts(image[caption], gram, self.num_images, len(keys))
            frequency = np.append(np.bincount(in_images.indices, minlength=len(keys)), 1)
            weight = np.log(self.num_images) - np.log(frequency)
            vectors = _counts(caption, gram, len(captions), len(keys))
            self._orders.append(_Order(keys, weight, vectors, _norm(_weighted(vectors, weight))))

    @property
    def is_zero(self) -> bool:
        """Whether every caption scores 0: all n-grams of references are in all images, such as in a single one."""
        return not any(order.weight[:-1].any() for order in self._orders)

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
        counts = np.diff(self._first)[image]
        mine = np.repeat(np.arange(len(image)), counts)  # the hypothesis of each pair with a reference
        theirs = np.arange(len(mine)) - np.repeat(counts.cumsum() - counts - self._first[image], counts)
        total = np.zeros(len(mine))
        # Numbers of the n-gram that starts at a position: among the hypotheses; among the references, or -1.
        number, in_references = np.zeros((2, len(words)), np.int64)
        for n, order in enumerate(self._orders):
            positions, last = text.ngrams(n)
            in_references[positions] = _find(order.keys, in_references[positions] << BITS | last)
            _, number[positions] = np.unique(number[positions] << BITS | last, return_inverse=True)
            known, grams = in_references[positions], len(order.keys)
            gram = np.where(known < 0, grams + number[positions], known)
            vectors = _weighted(_counts(text.caption[positions], gram, len(image), grams + len(words)), order.weight)
            reference = _weighted(order.vectors[theirs], order.weight)
            product = vectors[:, :grams][mine].minimum(reference).multiply(reference).sum(1)
            norms = _norm(vectors)[mine] * order.norm[theirs]
            total += np.divide(product, norms, out=np.zeros_like(norms), where=norms != 0)
        difference = text.bigrams[mine] - self._bigrams[theirs]
        total *= np.exp(-(difference**2) / (2 * SIGMA**2))
        return 10 / ORDERS * np.bincount(mine, total, len(image)) / counts


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
    """N-grams of one length in R references."""

    keys: np.ndarray  # number of the first n - 1 words and the last word; sorted, so the index numbers the n-grams
    weight: np.ndarray  # ln N - ln frequency of each n-gram, and then of an n-gram of no reference
    vectors: csr_array  # (R, n-grams), counts
    norm: np.ndarray  # (R), of the vectors with the weights


def _counts(row: np.ndarray, gram: np.ndarray, rows: int, grams: int) -> csr_array:
    ones = np.ones(len(row), np.int32)  # those of the same place are summed
    return import_optional('scipy.sparse').csr_array((ones, (row, gram)), (rows, grams))


def _weighted(vectors: csr_array, weight: np.ndarray) -> csr_array:
    values = vectors.data * weight.take(vectors.indices, mode='clip')
    return type(vectors)((values, vectors.indices, vectors.indptr), vectors.shape)


def _norm(vectors: csr_array) -> np.ndarray:
    return np.sqrt(vectors.power(2).sum(1))


def _find(keys: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Find the index of each number in the sorted ``keys``, or -1 for an absent number."""
    if not len(keys):
        return np.full(len(numbers), -1)
    index = np.minimum(np.searchsorted(keys, numbers), len(keys) - 1)
    return np.where(keys[index] == numbers, index, -1)
