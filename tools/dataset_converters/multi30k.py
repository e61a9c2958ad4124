"""Convert Multi30k, task 1 (translation of captions), to a corpus for training.

    python tools/dataset_converters/multi30k.py data/task1/raw [--source en --target de] [--out-dir data/multi30k]

The release is a folder, or a zip or tar archive, of https://github.com/multi30k/dataset. It contains, compressed or
not, and for the languages en, de, fr and cs::

    train.en.gz, val.en.gz, test_2016_flickr.en.gz      29,000, 1,014 and 1,000 lines

The text is tokenized, lower-cased and segmented by 5,000 BPE merges. Output, see ``common/text_preparation.py``::

    OUT/{train,val,test}.{en,de}        one sentence of subword pieces per line
    OUT/{val,test}.raw.{en,de}          as published
    OUT/bpe.codes, OUT/vocabulary.txt, OUT/corpus.json

With ``--vocab-from PREPARED``, a test set alone is converted for a trained model: that of ``--test STEM``, such as
``test_2017_mscoco``.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import mmattn.utils.command
from common.archives import unpack
from common.conversion import run_converter
from common.published_text import check_pairs, find_pairs, iter_pairs
from common.translation import (
    LANGUAGES,
    add_arguments,
    add_other_counts,
    add_test_stems,
    check_counts,
    convert_test,
    corpus_folder,
    prepare,
)
from mmattn.utils.faults import Faults, FaultsError

COUNTS = {'train': 29000, 'val': 1014, 'test_2016_flickr': 1000}


def convert(args: argparse.Namespace) -> None:
    languages = source, target = args.source or 'en', args.target or 'de'
    with corpus_folder(args, [args.release]) as scratch:
        if args.vocab_from:
            return convert_test(args, scratch, ['test_2016_flickr'], chosen=(args.source, args.target))
        if source == target:
            raise FaultsError(f'--source and --target must be two languages; got {source} twice')
        root = unpack(args.release, scratch, [f'{stem}.{language}' for stem in COUNTS for language in languages])
        faults = Faults()
        pairs = find_pairs(root, COUNTS, languages, faults)
        counts = check_pairs(pairs, faults)
        check_counts(counts, COUNTS, args, faults)
        faults.check()
        train, val, test = (iter_pairs(*pairs[name]) for name in COUNTS)
        lowercase, merges = args.lowercase is not False, args.merges or 5000
        prepare(args, scratch, languages, train, test, val, merges=merges, lowercase=lowercase, total=counts['train'])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description='Convert Multi30k, task 1, to a corpus for training.')
    parser.add_argument('release', type=Path, help='folder or archive with train.en.gz and the others')
    parser.add_argument('--source', choices=LANGUAGES, help='default: en, or that of --vocab-from')
    parser.add_argument('--target', choices=LANGUAGES, help='default: de, or that of --vocab-from')
    parser.add_argument('--out-dir', type=Path, default=Path('data/multi30k'), help='default: %(default)s')
    add_arguments(parser, merges='5,000', lowercase='yes')
    add_test_stems(parser)
    add_other_counts(parser)
    return run_converter(convert, parser, argv)


if __name__ == '__main__':
    mmattn.utils.command.run(main)
