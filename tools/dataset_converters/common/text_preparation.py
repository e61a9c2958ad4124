"""Preparation of parallel text: from published files to a folder with the corpus, its codes and its vocabulary.

All files are UTF-8 with the line end ``\\n``. Line n of one language is the translation of line n of the other::

    train.en train.de val.en … test.de      tokenized and segmented
    val.raw.en val.raw.de test.raw.en …     as published
    bpe.codes                               subword-nmt's codes, learned on both sides of the training set together
    vocabulary.txt                          symbols of both sides of the training set with their counts, most frequent
                                            first, then in the order of their code points
    corpus.json                             languages, options of the text, counts, versions of the packages
"""

import io
import json
import shutil
import signal
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, nullcontext, redirect_stderr
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import mmattn
from mmattn.language.text.subwords import TextProcessor
from mmattn.language.text.text_files import read_record, split_symbols
from mmattn.language.text.vocabulary import SPECIALS, Vocabulary
from mmattn.utils.faults import shorten
from mmattn.utils.files import write_text
from mmattn.utils.optional import import_optional
from mmattn.utils.progress import SlowLines, track

from .published_text import Pair, iter_pairs

CHUNK = 1000  # pairs that a process gets at a time
FREQUENT = dict(  # words that tell the languages of the converters apart
    cs='je na se že ve do pro',
    de='der die das und ist ein eine mit auf',
    en='the of and is are with on an',
    fr='le la les et un une dans est',
)


class Limits(NamedTuple):
    """Bounds on both lengths of a pair in tokens, and on the longer divided by the shorter. No line may be empty."""

    longest: int | None = None
    ratio: float | None = None

    def allow(self, pair: Pair) -> bool:
        """Check whether a pair, whose tokens are separated by spaces, is within the bounds."""
        short, long = sorted(len(split_symbols(line)) for line in pair)
        return (
            short >= 1
            and (self.longest is None or long <= self.longest)
            and (self.ratio is None or long <= self.ratio * short)
        )


NON_EMPTY = Limits()


def check_sources(split: str, pairs: Iterable[Pair]) -> None:
    """Check that no source line of an evaluation set is empty, because a model cannot translate it."""
    if empty := [number for number, (source, _) in enumerate(pairs, 1) if not split_symbols(source)]:
        raise ValueError(f'{split}: empty lines cannot be translated: {", ".join(shorten(empty, 10))}')


def look_exchanged(languages: Pair, words: tuple[Counter[str], Counter[str]]) -> bool:
    """Check whether frequent words of each language are more frequent on the other side."""
    if not set(languages) <= FREQUENT.keys():
        return False

    def share(language: str, side: int) -> float:
        return sum(words[side][word] for word in FREQUENT[language].split()) / max(words[side].total(), 1)

    return all(share(language, 1 - side) > share(language, side) for side, language in enumerate(languages))


def looks_tokenized(pair: Pair) -> bool:
    """Check for what tokenizers write and people do not: a space before the last full stop, or an entity."""
    return any(line.rstrip().endswith(' .') or '&apos;' in line for line in pair)


def tokenized_warning(split: str, count: int, total: int) -> list[str]:
    """Warn of text of which more than a twentieth :func:`looks_tokenized`, ``count`` of ``total`` pairs."""
    if 20 * count <= total:
        return []
    return [f'{split}: {count / total:.0%} of the pairs end in " ." or hold "&apos;"; give text that is not tokenized']


def learn_codes(words: Mapping[str, int], merges: int) -> list[str]:
    """Learn BPE from words and their counts. Returns the lines of the file of codes, starting with its version.

    Fewer than ``merges`` merges are learned if no other pair of symbols occurs twice.
    """
    learn_bpe = import_optional('subword_nmt.learn_bpe').learn_bpe
    output = io.StringIO()
    if any(len(word) > 1 for word in words):  # learn_bpe requires a pair of symbols
        # its bar is for terminals
        with nullcontext() if sys.stderr.isatty() else redirect_stderr(SlowLines('learning BPE: ')):
            learn_bpe((f'{word} {count}' for word, count in words.items()), output, merges, is_dict=True)
    codes = output.getvalue().split('\n')[:-1]
    if len(codes) < 2:
        raise ValueError('BPE cannot be learned: no pair of symbols occurs twice in the training text')
    return codes


Functions = tuple[Callable[[str], str], Callable[[str], str]]
_functions: Functions  # of a worker process


def _start_worker(functions: Functions) -> None:
    global _functions
    _functions = functions
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _run_chunk(chunk: Sequence[Pair]) -> list[tuple[Pair, Pair]]:
    return [_applied(_functions, pair) for pair in chunk]


def _applied(functions: Functions, pair: Pair) -> tuple[Pair, Pair]:
    return pair, (functions[0](pair[0]), functions[1](pair[1]))


def map_pairs(
    functions: Functions,
    pairs: Iterable[Pair],
    workers: int = 1,
    description: str | None = None,
    total: int | None = None,
) -> Iterator[tuple[Pair, Pair]]:
    """Apply one function to the sources and another to the targets. Yields pairs with their results, in order.

    The pairs are read as needed. With several ``workers`` (processes), both functions must be picklable.
    ``description`` is the title of a progress bar, and ``total`` the number of pairs. Without a description, no
    progress is shown.
    """
    results = _map_in_processes(functions, pairs, workers) if workers > 1 else map(partial(_applied, functions), pairs)
    if description is not None:
        results = track(results, description, total)
    yield from results


def _map_in_processes(functions: Functions, pairs: Iterable[Pair], workers: int) -> Iterator[tuple[Pair, Pair]]:
    pairs = iter(pairs)
    pending: deque[Future[list[tuple[Pair, Pair]]]] = deque()
    with ProcessPoolExecutor(workers, initializer=_start_worker, initargs=(functions,)) as pool:
        while chunk := list(islice(pairs, CHUNK)):
            pending.append(pool.submit(_run_chunk, chunk))
            if len(pending) > 4 * workers:  # bounds the memory
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()


# The output.


@contextmanager
def pair_files(source: Path, target: Path) -> Iterator[Callable[[Pair], None]]:
    """Open two text files. Yields a function that writes the next line of both."""
    with (
        open(source, 'w', encoding='utf-8', newline='\n') as first,
        open(target, 'w', encoding='utf-8', newline='\n') as second,
    ):

        def write(pair: Pair) -> None:
            first.write(f'{pair[0]}\n')
            second.write(f'{pair[1]}\n')

        yield write


class CorpusWriter:
    """Writes a corpus of segmented text. Write the training set first, then the other sets, then call :meth:`finish`.

    ``folder`` is created. ``languages`` are the codes of source and target.
    """

    def __init__(self, folder: Path, languages: Pair) -> None:
        folder.mkdir(parents=True)
        self.folder, self.languages = folder, languages
        self.counts: dict[str, int] = {}
        self.dropped = 0
        self.warnings: list[str] = []
        self.symbols: Counter[str] = Counter()

    def _paths(self, split: str) -> list[Path]:
        return [self.folder / f'{split}.{language}' for language in self.languages]

    def write_training(self, pairs: Iterable[Pair], limits: Limits = NON_EMPTY) -> None:
        """Write the segmented training pairs that ``limits`` allow, and count their symbols."""
        count = 0
        with pair_files(*self._paths('train')) as write:
            for pair in pairs:
                if not limits.allow(pair):
                    self.dropped += 1
                    continue
                write(pair)
                count += 1
                for line in pair:
                    self.symbols.update(split_symbols(line))
        self.counts['train'] = count

    def write_evaluation(self, split: str, pairs: Iterable[tuple[Pair, Pair]]) -> None:
        """Write pairs, both as published and segmented. Empty lines are kept, and a warning gives their numbers."""
        count, empty = 0, []
        with (
            pair_files(*self._paths(f'{split}.raw')) as write_published,
            pair_files(*self._paths(split)) as write_pieces,
        ):
            for count, (published, pieces) in enumerate(pairs, 1):
                write_published(published)
                write_pieces(pieces)
                if not all(map(split_symbols, pieces)):
                    empty.append(count)
        self.counts[split] = count
        if empty:
            self.warnings.append(f'{split}: empty lines are kept: {", ".join(map(str, empty))}')

    def finish(self, codes: Sequence[str], lowercase: bool, moses: Mapping[str, bool] | None = None) -> dict[str, Any]:
        """Write the codes, the vocabulary and ``corpus.json``. Returns a dict with the content of ``corpus.json``.

        ``codes`` are the lines of the file of codes. ``lowercase`` and ``moses`` are the options of
        :class:`TextProcessor` with which the text was tokenized.
        """
        if empty := [split for split, count in self.counts.items() if not count]:
            raise ValueError(f'no pair of lines is left in {", ".join(empty)}')
        reserved = [symbol for symbol in SPECIALS if self.symbols.pop(symbol, 0)]
        if reserved:
            self.warnings.append(f'train: contains {", ".join(reserved)}, which models use for other purposes')
        vocabulary = sorted(self.symbols.items(), key=lambda item: (-item[1], item[0]))
        write_text(self.folder / 'bpe.codes', ''.join(f'{line}\n' for line in codes))
        write_text(self.folder / 'vocabulary.txt', ''.join(f'{symbol} {count}\n' for symbol, count in vocabulary))
        source, target = self.languages
        record = dict(
            source=source,
            target=target,
            lowercase=lowercase,
            moses=dict(moses or {}),
            merges=sum(not line.startswith('#version:') for line in codes),
            vocabulary=len(vocabulary),
            counts=self.counts,
            dropped=self.dropped,
            versions={'mmattn': mmattn.__version__, **{name: version(name) for name in ('sacremoses', 'subword-nmt')}},
        )
        write_text(self.folder / 'corpus.json', json.dumps(record, indent=4, ensure_ascii=False) + '\n')
        return record


def prepare_corpus(
    folder: Path,
    languages: Pair,
    train: Iterable[Pair],
    test: Iterable[Pair],
    val: Iterable[Pair] | None = None,
    *,
    merges: int,
    lowercase: bool,
    moses: Mapping[str, bool] | None = None,
    validate_every: int | None = None,
    token_limits: Limits | None = None,
    piece_limits: Limits = NON_EMPTY,
    test_tokens: Functions | None = None,
    workers: int = 1,
    total: int | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Tokenize published text, learn BPE on both sides of the training set together, and write the segmented corpus.

    Returns a dict with the content of ``corpus.json``, and a list of warnings. Raises a ValueError if a source line of
    ``val`` or ``test`` is empty, BPE cannot be learned, or no pair of a set is left.

    Args:
        folder (Path): folder to create. Temporary files are written next to it. After an error, it is incomplete.
        languages (tuple[str, str]): codes of source and target.
        train, test, val (iterable): pairs of lines. The training set is read once, and need not fit into memory.
        merges (int): number of BPE merges.
        lowercase, moses: options of :class:`TextProcessor`.
        validate_every (int, optional): set it if there is no ``val``. Every n-th training pair that ``token_limits``
            allow becomes a validation pair.
        token_limits (Limits, optional): bounds on training pairs before segmentation.
        piece_limits (Limits): bounds on segmented training pairs, and on validation pairs taken from them.
        test_tokens (tuple, optional): functions that tokenize the test set. Default: as for the training set.
        workers (int): number of processes. Defaults to 1.
        total (int, optional): number of training pairs, for the progress bar.
    """
    if (val is None) == (validate_every is None):
        raise ValueError('exactly one of val and validate_every must be set')
    first = [TextProcessor(language, None, lowercase, **(moses or {})) for language in languages]
    tokenize = first[0].tokenize, first[1].tokenize
    writer = CorpusWriter(folder, languages)
    published = {} if val is None else {'val': list(map_pairs(tokenize, val))}
    published['test'] = list(map_pairs(test_tokens or tokenize, test))
    for split, pairs in published.items():
        check_sources(split, (tokens for _, tokens in pairs))
    held_out: list[tuple[Pair, Pair]] = []
    words: tuple[Counter[str], Counter[str]] = Counter(), Counter()
    dropped = number = equal = tokenized = 0
    with TemporaryDirectory(prefix='tokenized-', dir=folder.parent) as scratch:
        paths = Path(scratch, 'source'), Path(scratch, 'target')
        with pair_files(*paths) as write_tokens:
            for raw, tokens in map_pairs(tokenize, train, workers, 'tokenizing', total):
                tokenized += looks_tokenized(raw)
                if token_limits is not None and not token_limits.allow(tokens):
                    dropped += 1
                    continue
                number += 1
                if validate_every is not None and number % validate_every == 0:
                    held_out.append((raw, tokens))
                    continue
                write_tokens(tokens)
                equal += raw[0] == raw[1] != ''  # languages divide some words otherwise
                for counts, line in zip(words, tokens):
                    counts.update(split_symbols(line))
        if look_exchanged(languages, words):
            writer.warnings.append(
                f'train: {languages[0]} looks like {languages[1]}, and {languages[1]} like {languages[0]}'
            )
        if 2 * equal > number:
            writer.warnings.append(f'train: source and target are equal in {equal:,} of {number:,} pairs')
        writer.warnings += tokenized_warning('train', tokenized, number + dropped)
        codes = learn_codes(words[0] + words[1], merges)
        del words
        if len(codes) - 1 < merges:
            writer.warnings.append(
                f'only {len(codes) - 1:,} of {merges:,} BPE merges: no other pair of symbols occurs twice'
            )
        second = [TextProcessor(language, codes, lowercase, **(moses or {})) for language in languages]
        segment = second[0].segment, second[1].segment
        segmented = map_pairs(segment, iter_pairs(*paths), workers, 'segmenting', number - len(held_out))
        writer.write_training((pieces for _, pieces in segmented), piece_limits)
    writer.dropped += dropped
    if val is None:
        segmented_val = _segmented(segment, held_out)
        writer.write_evaluation('val', (pair for pair in segmented_val if piece_limits.allow(pair[1])))
    for split, pairs in published.items():
        writer.write_evaluation(split, _segmented(segment, pairs))
    return writer.finish(codes, lowercase, moses), writer.warnings


def _segmented(segment: Functions, pairs: Iterable[tuple[Pair, Pair]]) -> Iterator[tuple[Pair, Pair]]:
    for raw, tokens in pairs:
        yield raw, (segment[0](tokens[0]), segment[1](tokens[1]))


def prepare_test(
    folder: Path, prepared: Path, test: Iterable[Pair], test_tokens: Functions | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Write a new test set for a trained model, with the languages, codes and vocabulary of a prepared corpus.

    Returns a dict with the content of ``corpus.json``, and a list of warnings. Raises a ValueError if a source line is
    empty, there is no pair, or a file of ``prepared`` is damaged.

    ``folder`` must not exist. It gets ``test.*``, ``test.raw.*`` and copies of the other files of ``prepared``, the
    corpus on which the model was trained, except ``train`` and ``val``. See :func:`prepare_corpus`.
    """
    about = read_record(prepared)
    languages = about['source'], about['target']
    texts = [TextProcessor.from_corpus(prepared, language) for language in languages]
    vocabulary = Vocabulary.from_file(prepared / 'vocabulary.txt')
    pairs = list(map_pairs(test_tokens or (texts[0].tokenize, texts[1].tokenize), test, description='tokenizing'))
    if not pairs:
        raise ValueError('no pair of lines is left in test')
    check_sources('test', (tokens for _, tokens in pairs))
    segmented = [*_segmented((texts[0].segment, texts[1].segment), pairs)]
    writer = CorpusWriter(folder, languages)
    writer.write_evaluation('test', segmented)
    writer.warnings += tokenized_warning('test', sum(looks_tokenized(raw) for raw, _ in pairs), len(pairs))
    pieces = [piece for _, both in segmented for line in both for piece in split_symbols(line)]
    if unknown := sum(piece not in vocabulary for piece in pieces):
        writer.warnings.append(f'test: {unknown:,} of {len(pieces):,} symbols are not in the vocabulary of {prepared}')
    for name in ('bpe.codes', 'vocabulary.txt'):
        shutil.copyfile(prepared / name, folder / name)
    record = json.loads((prepared / 'corpus.json').read_text(encoding='utf-8')) | dict(counts=writer.counts, dropped=0)
    write_text(folder / 'corpus.json', json.dumps(record, indent=4, ensure_ascii=False) + '\n')
    return record, writer.warnings
