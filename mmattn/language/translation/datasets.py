"""Parallel text: sentences and their translations."""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmengine.logging import print_log
from mmengine.structures import BaseDataElement

from mmattn.language.text.text_dataset import Indices, PackedSequences, TextDataset, select_indices
from mmattn.language.text.text_files import read_lines, read_record, split_symbols
from mmattn.language.text.vocabulary import Vocabulary
from mmattn.registry import DATASETS
from mmattn.utils.checks import check_count
from mmattn.utils.faults import FaultsError, shorten


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
        indices: Indices = None,
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
        texts = [read_lines(path) for path in paths]
        if len(texts[0]) != len(texts[1]):
            raise ValueError(
                f'{paths[0]} and {paths[1]} must have the same number of lines; got {len(texts[0])} and {len(texts[1])}'
            )
        raw = [root / f'{split}.raw.{language}' for language in (source, target)]
        self.raw = [read_lines(path) for path in raw] if test_mode and all(path.is_file() for path in raw) else None
        if self.raw is not None and any(len(lines) != len(texts[0]) for lines in self.raw):
            raise ValueError(f'{raw[0]} and {raw[1]} must have {len(texts[0])} lines, as {paths[0]}')
        chosen: Sequence[int] = select_indices(range(len(texts[0]))[:num_samples], indices)
        if not test_mode:
            chosen = self._kept(paths, texts, chosen, max_length)
        else:
            empty = [number + 1 for number in chosen if not split_symbols(texts[0][number])]
            if empty:
                raise FaultsError(paths[0], f'empty lines cannot be translated: {", ".join(shorten(empty, 10))}')
        if not len(chosen):
            raise ValueError(f'{paths[0]} and {paths[1]} have no pair of sentences')
        self.lines = list(chosen)
        self.numbers = [
            PackedSequences(self.vocabulary.encode(lines[number]) for number in self.lines) for lines in texts
        ]
        self.texts = [[lines[number] for number in self.lines] for lines in texts] if test_mode else None
        self.lengths = list(zip(*(side.lengths() for side in self.numbers)))

    @staticmethod
    def _kept(paths: list[Path], texts: list[list[str]], chosen: Sequence[int], max_length: int) -> list[int]:
        kept, empty, long = [], 0, 0
        for number in chosen:
            lengths = [len(split_symbols(lines[number])) for lines in texts]
            if min(lengths) == 0:
                empty += 1
            elif max(lengths) > max_length:
                long += 1
            else:
                kept.append(number)
        if empty or long:
            print_log(
                f'{paths[0]} and {paths[1]}: {empty} pairs with an empty side and {long} pairs with more than '
                f'max_length={max_length} symbols are left out; {len(kept)} are left',
                'current',
                logging.WARNING,
            )
        return kept

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample: dict[str, Any] = dict(inputs=dict(source=self.numbers[0][index], target=self.numbers[1][index]))
        if self.texts is not None:
            number = self.lines[index]
            raw = [None, None] if self.raw is None else [lines[number] for lines in self.raw]
            sample['data_samples'] = BaseDataElement(
                metainfo=dict(line=number + 1),
                source=self.texts[0][index],
                target=self.texts[1][index],
                raw_source=raw[0],
                raw_target=raw[1],
            )
        return sample
