"""Convert IWSLT'14 German–English to a corpus for training.

    python tools/dataset_converters/iwslt14.py de-en.tgz [--out-dir data/iwslt14]

The release is the archive ``de-en.tgz``, its folder, or the archive or folder of all languages that contains it::

    train.tags.de-en.{de,en}                            training and validation
    IWSLT14.TED.{dev2010,tst2010,tst2011,tst2012}.de-en.{de,en}.xml
    IWSLT14.TEDX.dev2012.de-en.{de,en}.xml              with the others, the test set

The steps are those of published results. Training lines with ``<url>``, ``<talkid>`` or ``<keywords>`` are dropped. The
tags ``<title>`` and ``<description>`` are removed. The text is tokenized and lower-cased. Pairs with 1 to 175 tokens
and a ratio of lengths of up to 1.5 are kept. Every 23rd of them validates. 10,000 BPE merges are learned on the others.
In the test set, ``’`` becomes ``'`` before tokenization. Output, see ``common/text_preparation.py``::

    OUT/{train,val,test}.{de,en}        one sentence of subword pieces per line
    OUT/{val,test}.raw.{de,en}          as published, without tags
    OUT/bpe.codes, OUT/vocabulary.txt, OUT/corpus.json

With ``--vocab-from PREPARED``, a test set alone is converted for a trained model: that of ``--test STEM …``, such as
``IWSLT14.TED.tst2013.de-en``.
"""

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import mmattn.utils.command
from common.archives import unpack
from common.conversion import run_converter
from common.published_text import Pair, check_pairs, find_pairs, iter_pairs, read_segments
from common.text_preparation import Limits
from common.translation import (
    add_arguments,
    add_test_stems,
    convert_test,
    corpus_folder,
    prepare,
    tokens_of_test,
    warn,
)
from mmattn.utils.faults import Faults

LANGUAGES = 'de', 'en'
TRAIN = 'train.tags.de-en'
TESTS = [
    f'IWSLT14.{name}.de-en' for name in ('TED.dev2010', 'TEDX.dev2012', 'TED.tst2010', 'TED.tst2011', 'TED.tst2012')
]
COUNTS = {'train': 160239, 'val': 7283, 'test': 6750}  # of published results
DROPPED = re.compile('<(url|talkid|keywords)>')
TAGS = re.compile('</?(title|description)>')


def training_pairs(source: Path, target: Path) -> Iterator[Pair]:
    """Yield the pairs of the training files, without the lines and the tags of their descriptions."""
    for pair in iter_pairs(source, target):
        if not any(map(DROPPED.search, pair)):
            yield TAGS.sub('', pair[0]), TAGS.sub('', pair[1])


def convert(args: argparse.Namespace) -> None:
    with corpus_folder(args, [args.release]) as scratch:
        root = unpack(args.release, scratch)
        inner = sorted(root.rglob('de-en.tgz'))
        if inner and not any(root.rglob(f'{TRAIN}.*')):
            root = unpack(inner[0], scratch)
        if args.vocab_from:
            args.release = root
            return convert_test(args, scratch, TESTS, published=True)
        faults = Faults()
        train = find_pairs(root, [TRAIN], LANGUAGES, faults)
        tests = find_pairs(root, TESTS, LANGUAGES, faults, '.xml')
        counts = check_pairs(train, faults)
        check_pairs(tests, faults, read_segments)
        faults.check()
        lowercase = args.lowercase is not False
        record = prepare(
            args,
            scratch,
            LANGUAGES,
            training_pairs(*train[TRAIN]),
            (pair for a, b in tests.values() for pair in zip(read_segments(a), read_segments(b), strict=True)),
            merges=args.merges or 10000,
            lowercase=lowercase,
            validate_every=23,
            token_limits=Limits(longest=175, ratio=1.5),
            test_tokens=tuple(tokens_of_test(language, lowercase) for language in LANGUAGES),
            total=counts[TRAIN],
        )
        warn(
            f'{split}: {count:,} pairs, published results have {COUNTS[split]:,}'
            for split, count in record['counts'].items()
            if count != COUNTS[split]
        )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Convert IWSLT'14 German–English to a corpus for training.")
    parser.add_argument('release', type=Path, help='archive de-en.tgz, or its folder')
    parser.add_argument('--out-dir', type=Path, default=Path('data/iwslt14'), help='default: %(default)s')
    add_arguments(parser, merges='10,000', lowercase='yes')
    add_test_stems(parser)
    return run_converter(convert, parser, argv)


if __name__ == '__main__':
    mmattn.utils.command.run(main)
