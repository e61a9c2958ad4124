"""Published word vectors, such as GloVe and Skip-Thought, and the hook that starts a training from them."""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import Runner
from torch import Tensor, nn

from mmattn._compat import has_loaded
from mmattn.language.text.annotation_files import check_text, read_json
from mmattn.language.text.text_files import iter_lines, read_lines
from mmattn.language.text.vocabulary import SPECIALS, UNK
from mmattn.language.text.words import find_rule
from mmattn.registry import HOOKS
from mmattn.utils.faults import reading
from mmattn.utils.model_wrappers import unwrapped
from mmattn.utils.progress import track

UNKNOWN = 'UNK'
CHUNK = 10_000  # sentences that are mixed together


def read_word_vectors(
    path: str | Path, words: Collection[str], dim: int, dictionary: str | Path | None = None
) -> dict[str, Tensor]:
    """Read the vectors of some words, float32 ``(dim)`` by word. Words without a vector are left out.

    A text file, possibly ``.gz``, has one word per line and its numbers, separated by spaces, as GloVe. A file ``.npy``
    has one row per line of ``dictionary``, as ``utable.npy`` of Skip-Thought. A file with another layout, with vectors
    of another width or with none of the words raises a ValueError that names the file.

    Args:
        path (str or Path): the file.
        words (collection of str): the words.
        dim (int): channels of the vectors.
        dictionary (str or Path, optional): the words of an ``.npy`` file, one per line, for such a file only.

    Example:
        >>> _ = Path('vectors.txt').write_text('dog 1 0.5\\ncat 0 2\\n', encoding='utf-8')
        >>> read_word_vectors('vectors.txt', ['a', 'dog'], dim=2)
        {'dog': tensor([1.0000, 0.5000])}
    """
    if (Path(path).suffix == '.npy') != (dictionary is not None):
        accepted = 'None, because the file has the words' if dictionary is not None else 'the path of the words'
        raise ValueError(f'{path}: dictionary must be {accepted}; got {dictionary}')
    words = set(words)
    vectors = _from_text(path, words, dim) if dictionary is None else _from_table(path, words, dim, dictionary)
    if not vectors:
        raise ValueError(f'{path}: none of the {len(words):,} words is in the file')
    return vectors


def _from_text(path: str | Path, words: set[str], dim: int) -> dict[str, Tensor]:
    vectors: dict[str, Tensor] = {}
    for number, line in enumerate(iter_lines(path), 1):
        word, *numbers = line.rstrip().rsplit(' ', dim)  # a word of some published files contains spaces
        if number > 1 and word not in words:
            continue
        try:
            vector = torch.tensor([float(x) for x in numbers])
        except ValueError:
            vector = torch.empty(0)
        if len(vector) != dim or ' ' in word or not vector.isfinite().all():
            raise ValueError(
                f'{path}, line {number}: expected a word and {dim} numbers (word_dim of the question encoder); got '
                f'{len(line.split()) - 1}: {line[:60]!r}'
            )
        if word in words:
            vectors.setdefault(word, vector)
    return vectors


def _from_table(path: str | Path, words: set[str], dim: int, dictionary: str | Path) -> dict[str, Tensor]:
    with reading(path, 'not an array'):
        table = np.load(path, mmap_mode='r', allow_pickle=False)
        if table.dtype.kind != 'f':
            raise ValueError(f'of {table.dtype}, not of floating-point numbers')
    lines = read_lines(dictionary)
    rows = {word.strip(): number for number, word in enumerate(lines)}
    if table.ndim != 2 or table.shape[1] != dim or len(table) < len(lines):
        raise ValueError(
            f'{path}: must be (n, {dim}), with word_dim of the question encoder and at least {len(lines):,} rows, the '
            f'lines of {dictionary}; got {table.shape}'
        )
    return {word: torch.from_numpy(table[rows[word]].astype(np.float32)) for word in words & rows.keys()}


def mix_vectors(sentences: Sequence[Sequence[int]], vectors: Tensor, plain_counts: bool = False) -> Tensor:
    """Mix the vectors of the companions of each word in sentences, A·G: float64 ``(V, C)``.

    Each pair of positions of a sentence, with the words w and w', adds 1/df(w') to A[w, w'] and 1/df(w) to A[w', w],
    where df is the number of occurrences of a word in all sentences. Then rows of A are divided by their sum. The
    mixture of a word without a companion is 0.

    Source: "Bilinear Attention Networks", 2018, appendix. Its code adds 1 for each pair in place of 1/df.

    Args:
        sentences (sequence of sequence of int): the numbers of the words of each sentence.
        vectors (Tensor): G, ``(V, C)``.
        plain_counts (bool): add 1 for each pair, not 1/df. Defaults to False.

    Example:
        >>> mix_vectors([[0, 1, 1], [0, 2]], torch.eye(3), plain_counts=True)[0]
        tensor([0.0000, 0.6667, 0.3333], dtype=torch.float64)
    """
    size = len(vectors)
    counts = torch.bincount(torch.tensor([i for words in sentences for i in words], dtype=torch.long), minlength=size)
    weights = torch.ones(size).double() if plain_counts else 1 / counts.clamp(min=1).double()
    # The last channel is the sum of the weights.
    weighted = torch.cat([vectors.double(), torch.ones(size, 1).double()], 1) * weights[:, None]
    mixed = torch.zeros_like(weighted)
    for start in track(range(0, len(sentences), CHUNK), 'Mixing'):
        part = sentences[start : start + CHUNK]
        words = torch.tensor([i for sentence in part for i in sentence], dtype=torch.long)
        lengths = torch.tensor([len(sentence) for sentence in part])
        word_vectors = weighted[words]
        sentence_numbers = torch.arange(len(part)).repeat_interleave(lengths)
        total = torch.zeros(len(part), word_vectors.shape[1]).double().index_add_(0, sentence_numbers, word_vectors)
        mixed.index_add_(0, words, total[sentence_numbers] - word_vectors)  # of all other positions
    # The difference of equal sums may be a rounding error.
    alone = torch.ones(size, dtype=torch.bool)
    alone[[i for sentence in sentences if len(sentence) > 1 for i in sentence]] = False
    sums = mixed[:, -1:].masked_fill(alone[:, None], 1)
    return mixed[:, :-1].masked_fill(alone[:, None], 0) / sums


def read_mixed_vectors(
    path: str | Path,
    words: Sequence[str],
    dim: int,
    sentences: Iterable[Sequence[str]],
    plain_counts: bool = False,
    dictionary: str | Path | None = None,
) -> dict[str, Tensor]:
    """Read the vectors of some words, and append the mixture of the vectors of their companions in sentences.

    Returns float32 ``(2 · dim)`` by word, for all words: a word that is not in the file has the vector 0. Other words
    of the sentences are companions, too.

    Args:
        path, dim, dictionary: see :func:`read_word_vectors`.
        words (sequence of str): the words, each once.
        sentences (iterable of sequence of str): the words of each sentence.
        plain_counts (bool): see :func:`mix_vectors`. Defaults to False.
    """
    numbers = {word: number for number, word in enumerate(words)}
    numbered = [[numbers.setdefault(word, len(numbers)) for word in sentence] for sentence in sentences]
    found = read_word_vectors(path, numbers, dim, dictionary)
    vectors = torch.stack([found.get(word, torch.zeros(dim)) for word in numbers])
    both = torch.cat([vectors, mix_vectors(numbered, vectors, plain_counts).float()], 1)
    return dict(zip(words, both))


def _read_texts(path: str | Path) -> list[str]:
    """Read the questions of a prepared file, or the captions of a file in COCO's layout."""
    data = read_json(path)
    with reading(path, "neither 'questions' of a converter nor 'annotations' of COCO's captions"):
        name, key = ('questions', 'question') if 'questions' in data else ('annotations', 'caption')
        return [check_text(entry[key]) for entry in data[name]]


@HOOKS.register_module()
class WordVectorHook(Hook):
    """Fill the embedding of a model with word vectors from a file, before the first iteration.

    The hook fills the first ``nn.Embedding`` of the model, which must be as wide as the vectors. A word without a
    vector, also ``<unk>``, gets the vector of the word 'UNK', if the file has it, as Skip-Thought. Otherwise the word
    gets 0, as in the code of the bilinear attention network. The vector of padding stays 0. All vectors are trained
    further. A training that starts from a checkpoint, or is resumed, keeps the vectors of the checkpoint.

    Args:
        file (str): text file of word vectors, such as ``glove.6B.300d.txt``, or ``utable.npy``, see
            :func:`mmattn.language.vqa.read_word_vectors`.
        dictionary (str, optional): the words of an ``.npy`` file. Defaults to None.
        mixture (sequence of str): files of questions, or of captions in COCO's layout. With them, the model's vectors
            have twice the channels of the file: a word's own, and the mixture of its companions' vectors in
            these sentences, see :func:`read_mixed_vectors`. Unknown words get 0. Defaults to none.
        plain_counts (bool): do not weight companions by their inverse frequency in the mixture. Defaults to False.

    Example:
        >>> from mmattn.registry import HOOKS
        >>> HOOKS.build(dict(type='WordVectorHook', file='glove.6B.300d.txt')).file
        'glove.6B.300d.txt'
        >>> custom_hooks = [dict(type='mmattn.WordVectorHook', file='glove.6B.300d.txt')]  # in a config
    """

    def __init__(
        self, file: str, dictionary: str | None = None, mixture: Sequence[str] = (), plain_counts: bool = False
    ) -> None:
        if isinstance(mixture, str):
            raise TypeError(f'mixture must be a list of files; got {mixture!r}')
        self.file, self.dictionary, self.mixture, self.plain_counts = file, dictionary, mixture, plain_counts

    def before_train(self, runner: Runner) -> None:
        """Fill the embedding."""
        if has_loaded(runner):
            print_log(f'word vectors: the checkpoint has them, so {self.file} is not read', 'current')
            return
        meta = runner.train_dataloader.dataset.metainfo
        symbols = meta['symbols']
        embedding = next((part for part in unwrapped(runner.model).modules() if isinstance(part, nn.Embedding)), None)
        rows = None if embedding is None else len(embedding.weight)
        if embedding is None or rows != len(SPECIALS) + len(symbols):
            raise ValueError(
                f'{self.file}: WordVectorHook requires a model with an nn.Embedding of '
                f'{len(SPECIALS) + len(symbols):,} rows, the symbols of the training data; got {rows}'
            )
        vectors = self._read(symbols, embedding.embedding_dim, meta.get('tokens', 'ban'))
        absent = vectors.pop(UNKNOWN, torch.zeros(embedding.embedding_dim))
        width = embedding.embedding_dim // (2 if self.mixture else 1)  # the rest is mixed
        count = sum(bool(vectors[word][:width].any()) for word in symbols if word in vectors)
        if not count:
            raise ValueError(f'{self.file}: none of the {len(symbols):,} words is in the file')
        with torch.no_grad():
            embedding.weight[UNK] = absent
            embedding.weight[len(SPECIALS) :] = torch.stack([vectors.get(word, absent) for word in symbols])
        print_log(f'word vectors: {count:,} of {len(symbols):,} words are in {self.file}', 'current')

    def _read(self, symbols: Sequence[str], dim: int, tokens: str) -> dict[str, Tensor]:
        if not self.mixture:
            return read_word_vectors(self.file, {*symbols, UNKNOWN}, dim, self.dictionary)
        if dim % 2:
            raise ValueError(f'{self.file}: with mixture, word_dim of the question encoder must be even; got {dim}')
        words = find_rule(tokens).words
        sentences = [words(text) for path in self.mixture for text in _read_texts(path)]
        vectors = read_mixed_vectors(self.file, symbols, dim // 2, sentences, self.plain_counts, self.dictionary)
        return {word: vector for word, vector in vectors.items() if vector.any()}
