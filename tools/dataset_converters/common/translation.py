"""Options, checks and output folder that all converters of parallel text share."""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmattn.language.text.subwords import TextProcessor, languages
from mmattn.language.text.text_files import iter_lines, read_record
from mmattn.utils.faults import Faults, FaultsError
from mmattn.utils.optional import import_optional

from .archives import unpack
from .conversion import output_folder
from .published_text import Pair, check_pairs, find_pairs, read_segments
from .text_preparation import prepare_corpus, prepare_test

LANGUAGES = ('cs', 'de', 'en', 'fr')  # of Multi30k


def positive(text: str) -> int:
    """Parse a positive number."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


positive.__name__ = 'positive number'  # in the message of argparse


def add_arguments(parser: argparse.ArgumentParser, merges: str, lowercase: str) -> None:
    """Add the options of all converters of parallel text. ``merges`` and ``lowercase`` describe the defaults."""
    parser.add_argument('--merges', type=positive, help=f'number of BPE merges (default: {merges})')
    parser.add_argument(
        '--lowercase',
        action=argparse.BooleanOptionalAction,
        help=f'lower-case the text (default: {lowercase})',
    )
    parser.add_argument(
        '--workers', type=positive, default=1, help='processes that tokenize and segment (default: %(default)s)'
    )
    parser.add_argument(
        '--vocab-from',
        type=Path,
        metavar='PREPARED',
        help='convert a test set alone, for a model trained on this output of the converter: with its languages, codes '
        'and vocabulary',
    )


def add_test_stems(parser: argparse.ArgumentParser) -> None:
    """Add ``--test``, which names the test set that :func:`convert_test` converts."""
    parser.add_argument(
        '--test',
        dest='stems',
        nargs='+',
        metavar='STEM',
        help='with --vocab-from: the test set is in STEM.SOURCE and STEM.TARGET, possibly .gz, or STEM.SOURCE.xml and '
        "STEM.TARGET.xml; default: the release's",
    )


def add_other_counts(parser: argparse.ArgumentParser) -> None:
    """Add ``--allow-other-counts``, with which :func:`check_counts` only warns."""
    parser.add_argument(
        '--allow-other-counts',
        action='store_true',
        help='for a part of the release: only warn if the number of sentences differs from the release',
    )


def check_counts(
    counts: Mapping[str, int], expected: Mapping[str, int], args: argparse.Namespace, faults: Faults
) -> None:
    """Compare numbers of sentences by name with the release.

    With ``--allow-other-counts``, differences are only printed. Names outside ``expected`` are not compared.
    """
    for name, count in counts.items():
        if count != expected.get(name, count):
            text = f'{count:,} sentences, the release has {expected[name]:,}'
            if args.allow_other_counts:
                warn([f'{name}: {text}'])
            else:
                faults.add(name, f'{text} (--allow-other-counts)')


def tokens_of_test(language: str, lowercase: bool, **moses: bool) -> Callable[[str], str]:
    """Build a function that tokenizes a line of a test set. As in published results, ``’`` first becomes ``'``."""
    text = TextProcessor(language, None, lowercase, **moses)
    return lambda line: text.tokenize(line.replace('’', "'"))


def warn(lines: Iterable[str]) -> None:
    """Print warnings."""
    for line in lines:
        print(f'warning: {line}', file=sys.stderr)


@contextmanager
def corpus_folder(args: argparse.Namespace, sources: Sequence[Path], more: Sequence[str] = ()) -> Iterator[Path]:
    """Yield a temporary folder as ``output_folder`` does. A ValueError of the library becomes a fault.

    ``more`` are files that the converter writes beside those of a corpus, and ``--overwrite`` may delete.
    """
    for package in ('sacremoses', 'subword_nmt'):  # before archives are unpacked
        import_optional(package)
    if getattr(args, 'stems', None) and not args.vocab_from:
        raise FaultsError('--test requires --vocab-from, the output of the converter on which the model was trained')
    sources = [*sources, *([args.vocab_from] if args.vocab_from else [])]
    names = 'train', 'val', 'test', 'val.raw', 'test.raw'
    written = {*('bpe.codes', 'vocabulary.txt', 'corpus.json'), *more}
    written |= {f'{name}.{code}' for name in names for code in languages()}
    try:
        with output_folder(args.out_dir, args.overwrite, sources, written) as scratch:
            yield scratch
    except FaultsError:
        raise
    except ValueError as error:
        raise FaultsError(str(error)) from error


def convert_test(
    args: argparse.Namespace,
    scratch: Path,
    stems: Sequence[str],
    published: bool = False,
    chosen: Sequence[str | None] = (None, None),
) -> None:
    """Convert the test set of ``--test``, or else ``stems`` of the release, with the vocabulary of ``--vocab-from``.

    ``published`` tokenizes as for published results, see :func:`tokens_of_test`. ``chosen`` has the source and target
    language that the user asks for, or None for the language of ``--vocab-from``.
    """
    if args.merges is not None or args.lowercase is not None:
        raise FaultsError(f'--merges and --lowercase are already set by {args.vocab_from}')
    record = read_record(args.vocab_from)
    languages = record['source'], record['target']
    if (direction := tuple(code or language for code, language in zip(chosen, languages))) != languages:
        raise FaultsError(
            args.vocab_from, f'translates {" to ".join(languages)}, not {" to ".join(direction)}, as asked for'
        )
    root = unpack(args.release, scratch)
    pairs: list[Pair] = []
    faults = Faults()
    for stem in args.stems or stems:
        missing, wrong = Faults(), Faults()
        plain = find_pairs(root, [stem], languages, missing)
        both = plain or find_pairs(root, [stem], languages, Faults(), '.xml')
        read = iter_lines if plain else read_segments
        check_pairs(both, wrong, read)
        faults.include(wrong if both else missing)
        if both and not wrong:
            pairs += zip(*map(read, both[stem]))
    faults.check()
    tokens = None
    if published:
        moses = {**record['moses'], 'normalize': False}
        source, target = (tokens_of_test(language, record['lowercase'], **moses) for language in languages)
        tokens = source, target
    report(args, *prepare_test(scratch / 'new', args.vocab_from, pairs, tokens))


def prepare(args: argparse.Namespace, scratch: Path, *positional: Any, **options: Any) -> dict[str, Any]:
    """Prepare a corpus in the folder ``new`` of ``scratch``, and report the result."""
    record, warnings = prepare_corpus(scratch / 'new', *positional, workers=args.workers, **options)
    report(args, record, warnings)
    return record


def report(args: argparse.Namespace, record: Mapping[str, Any], warnings: Iterable[str]) -> None:
    """Print the counts of a corpus, and warnings."""
    counts = ', '.join(f'{count:,} {split}' for split, count in record['counts'].items())
    dropped = f' ({record["dropped"]:,} dropped)' if record['dropped'] else ''
    print(f'{args.out_dir}: {counts} pairs{dropped}, {record["merges"]:,} merges, {record["vocabulary"]:,} symbols')
    warn(warnings)
