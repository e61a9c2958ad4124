"""Published word vectors, such as GloVe and Skip-Thought, and the hook that starts a training from them."""

from collections.abc import Collection
from pathlib import Path

import numpy as np
import torch
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import Runner
from torch import Tensor, nn

from mmattn._compat import has_loaded
from mmattn.language.text.text_files import iter_lines, read_lines
from mmattn.language.text.vocabulary import SPECIALS, UNK
from mmattn.registry import HOOKS
from mmattn.utils.faults import reading
from mmattn.utils.model_wrappers import unwrapped


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


UNKNOWN = 'UNK'


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

    Example:
        >>> from mmattn.registry import HOOKS
        >>> HOOKS.build(dict(type='WordVectorHook', file='glove.6B.300d.txt')).file
        'glove.6B.300d.txt'
        >>> custom_hooks = [dict(type='mmattn.WordVectorHook', file='glove.6B.300d.txt')]  # in a config
    """

    def __init__(self, file: str, dictionary: str | None = None) -> None:
        self.file, self.dictionary = file, dictionary

    def before_train(self, runner: Runner) -> None:
        """Fill the embedding."""
        if has_loaded(runner):
            print_log(f'word vectors: the checkpoint has them, so {self.file} is not read', 'current')
            return
        symbols = runner.train_dataloader.dataset.metainfo['symbols']
        embedding = next((part for part in unwrapped(runner.model).modules() if isinstance(part, nn.Embedding)), None)
        rows = None if embedding is None else len(embedding.weight)
        if embedding is None or rows != len(SPECIALS) + len(symbols):
            raise ValueError(
                f'{self.file}: WordVectorHook requires a model with an nn.Embedding of '
                f'{len(SPECIALS) + len(symbols):,} rows, the symbols of the training data; got {rows}'
            )
        vectors = read_word_vectors(self.file, {*symbols, UNKNOWN}, embedding.embedding_dim, self.dictionary)
        absent = vectors.pop(UNKNOWN, torch.zeros(embedding.embedding_dim))
        count = sum(word in vectors for word in symbols)
        if not count:
            raise ValueError(f'{self.file}: none of the {len(symbols):,} words is in the file')
        with torch.no_grad():
            embedding.weight[UNK] = absent
            embedding.weight[len(SPECIALS) :] = torch.stack([vectors.get(word, absent) for word in symbols])
        print_log(f'word vectors: {count:,} of {len(symbols):,} words are in {self.file}', 'current')
