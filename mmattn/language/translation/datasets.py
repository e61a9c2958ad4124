"""Parallel text: sentences and their translations."""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.logging import print_log
from mmengine.structures import BaseDataElement

from mmattn.language.text.text_dataset import TextDataset
from mmattn.language.text.text_files import iter_lines, read_lines, read_record
from mmattn.language.text.vocabulary import Vocabulary
from mmattn.registry import DATASETS
from mmattn.utils.checks import check_count
from mmattn.utils.faults import FaultsError, shorten

from .packed_sequences import PackedSequences


@DATASETS.register_module()
class ParallelTextDataset(TextDataset):
    r"""Two text files, aligned line by line, in the folder that a converter of ``tools/dataset_converters`` wrote.

    A sample has ``inputs`` with 'source' and 'target', int64 ``(length)`` with ``</s>``. With ``test_mode``, it also
    has ``data_samples`` with the texts. Training leaves out pairs with an empty side or with more than ``max_length``
    symbols on a side, and logs their number. Tests keep all pairs, because BLEU is defined on the whole set.

    Checkpoints contain ``metainfo``, all that is needed to translate other text: languages, ``lowercase``, options of
    the tokenizer, symbols of the vocabulary and codes of the subword segmentation.

    Args:
        data_root (str): the folder, with ``corpus.json``, ``vocabulary.txt`` and ``bpe.codes``.
        split (str): 'train', 'val', 'test' or another prefix of file names. ``<split>.<language>`` is segmented text,
            and ``<split>.raw.<language>`` the published text (optional).
        source, target (str, optional): languages. Default to ``corpus.json``.
        max_length (int): in training, the largest number of symbols of a side, without ``</s>``. Defaults to 250.
        num_samples (int, optional): use only the first pairs. Defaults to None.
        indices (int or sequence of int, optional): use these pairs, see :func:`select_indices`. Defaults to None.
        test_mode (bool): keep every pair, and return the texts. Defaults to False.

    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: the files differ in number of lines, one is not UTF-8 or invalid, a source sentence of a test is
            empty, or no pair is left.

    Example:
        >>> from mmattn.utils.files import write_text
        >>> write_text('en-de/corpus.json', '{"source": "en", "target": "de", "lowercase": true, "moses": {}}')
        >>> write_text('en-de/vocabulary.txt', 'dog 9\nein 8\nhu@@ 7\nnd 6\na 5\n')
        >>> write_text('en-de/bpe.codes', '#version: 0.2\nn d</w>\nh u\n')
        >>> write_text('en-de/test.en', 'a dog\n')
        >>> write_text('en-de/test.de', 'ein hu@@ nd\n')
        >>> sample = ParallelTextDataset('en-de', 'test', test_mode=True)[0]
        >>> sample['inputs']['target'], sample['data_samples'].target
        (tensor([5, 6, 7, 2]), 'ein hu@@ nd')
    """

    def __init__(
        self,
        data_root: str,
        split: str,
        source: str | None = None,
        target: str | None = None,
        max_length: int = 250,
        num_samples: int | None = None,
        test_mode: bool = False,
        indices: int | Sequence[int] | None = None,
    ) -> None:
        root = Path(data_root)
        corpus = root / 'corpus.json'
        if not corpus.is_file():
            message = 'no such file; a converter such as tools/dataset_converters/multi30k.py writes this folder'
            raise FileNotFoundError(errno.ENOENT, message, str(corpus))
        check_count('max_length', max_length)
        if num_samples is not None:
            check_count('num_samples', num_samples)
        record = read_record(root)
        source, target = source or record['source'], target or record['target']
        if source == target:
            raise ValueError(f'source and target must be different languages; both are {source!r}')
        words = root / 'vocabulary.txt'
        self.vocabulary = Vocabulary.from_file(words)
        self.needs = dict(vocab_size=(len(self.vocabulary), str(words)))
        self.sources = dict(symbols=str(words), source=str(corpus), target=str(corpus))
        self.test_mode = test_mode
        self.metainfo = dict(
            source=source,
            target=target,
            lowercase=record['lowercase'],
            moses=record['moses'],
            symbols=list(self.vocabulary.symbols[4:]),
            codes=read_lines(root / 'bpe.codes'),
        )
        paths = [root / f'{split}.{language}' for language in (source, target)]
        raw = [root / f'{split}.raw.{language}' for language in (source, target)]
        self.texts = [read_lines(path) for path in paths] if test_mode else None
        self.raw = [read_lines(path) for path in raw] if test_mode and all(path.is_file() for path in raw) else None
        # a large corpus does not fit into memory as text: it is encoded as it is read, and pairs are not taken out
        texts = map(iter_lines, paths) if self.texts is None else self.texts
        kind = 'H' if len(self.vocabulary) <= 2**16 else 'i'
        self.numbers = [PackedSequences(map(self.vocabulary.encode, lines), kind) for lines in texts]
        count, other = map(len, self.numbers)
        if count != other:
            raise ValueError(f'{paths[0]} and {paths[1]} must have the same number of lines; got {count} and {other}')
        if self.raw is not None and any(len(lines) != count for lines in self.raw):
            raise ValueError(f'{raw[0]} and {raw[1]} must have {count} lines, as {paths[0]}')
        lengths = np.stack([side.lengths().astype(np.int32) for side in self.numbers], 1)
        self.lines = np.array(select_indices(range(count)[:num_samples], indices), np.int64)
        if not test_mode:
            self.lines = self._kept(paths, lengths, max_length)
        elif empty := (self.lines[lengths[self.lines, 0] == 1] + 1).tolist():
            raise FaultsError(paths[0], f'empty lines cannot be translated: {", ".join(shorten(empty, 10))}')
        if not len(self.lines):
            raise ValueError(f'{paths[0]} and {paths[1]} have no pair of sentences')
        self.lengths = lengths[self.lines]

    def _kept(self, paths: list[Path], lengths: np.ndarray, max_length: int) -> np.ndarray:
        lengths = lengths[self.lines] - 1  # without </s>
        empty = lengths.min(1) == 0
        long = ~empty & (lengths.max(1) > max_length)
        kept = self.lines[~(empty | long)]
        if len(kept) < len(self.lines):
            print_log(
                f'{paths[0]} and {paths[1]}: {empty.sum()} pairs with an empty side and {long.sum()} pairs with more '
                f'than max_length={max_length} symbols are left out; {len(kept)} are left',
                'current',
                logging.WARNING,
            )
        return kept

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> dict[str, Any]:
        line = int(self.lines[index])
        source, target = (side[line] for side in self.numbers)
        sample: dict[str, Any] = dict(inputs=dict(source=source, target=target))
        if self.texts is not None:
            raw = [None, None] if self.raw is None else [lines[line] for lines in self.raw]
            sample['data_samples'] = BaseDataElement(
                metainfo=dict(line=line + 1),
                source=self.texts[0][line],
                target=self.texts[1][line],
                raw_source=raw[0],
                raw_target=raw[1],
            )
        return sample


def select_indices(items: Sequence[Any], indices: int | Sequence[int] | None) -> list[Any]:
    """Select items as ``indices`` of mmengine's data sets: None for all, n for the first n, −n for the last n.

    Example:
        >>> select_indices('abcd', 2), select_indices('abcd', -1), select_indices('abcd', [3, 0])
        (['a', 'b'], ['d'], ['d', 'a'])
    """
    if indices is None:
        return list(items)
    if isinstance(indices, int) and not isinstance(indices, bool) and indices:
        return list(items[:indices] if indices > 0 else items[indices:])
    numbers = list(indices) if isinstance(indices, Sequence) and not isinstance(indices, str) else []
    if not numbers or not all(type(i) is int and -len(items) <= i < len(items) for i in numbers):
        raise ValueError(f'indices must be a number of samples, or positions among {len(items):,}; got {indices!r}')
    if len({i % len(items) for i in numbers}) < len(numbers):
        raise ValueError('indices must not contain a sample twice, because a metric counts each sample once')
    return [items[i] for i in numbers]
