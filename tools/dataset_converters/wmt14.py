"""Convert WMT'14 English–German or English–French to a corpus for training.

    python tools/dataset_converters/wmt14.py en-de wmt16_en_de.tar.gz [--out-dir data/wmt14_en_de]
    python tools/dataset_converters/wmt14.py en-fr FOLDER --workers 16 [--out-dir data/wmt14_en_fr]

``en-de`` is Google's release for WMT'16, a folder or an archive. Its text is tokenized, with escaped special
characters, and segmented; it is checked and copied::

    train.tok.clean.bpe.32000.{en,de}           about 4.5 million lines
    newstest2013.tok.bpe.32000.{en,de}          validation, 3,000 lines
    newstest2014.tok.bpe.32000.{en,de}          test, 3,003 lines
    newstest{2013,2014}.{en,de}                 the same as published; without them, the others are detokenized
    bpe.32000, vocab.bpe.32000

``en-fr`` is a folder with the archives of https://statmt.org/wmt14/translation-task.html, or with their files::

    training-parallel-europarl-v7.tgz           europarl-v7.fr-en.{en,fr}
    training-parallel-commoncrawl.tgz           commoncrawl.fr-en.{en,fr}
    training-parallel-un.tgz                    undoc.2000.fr-en.{en,fr}
    training-parallel-nc-v9.tgz                 news-commentary-v9.fr-en.{en,fr}
    training-giga-fren.tar                      giga-fren.release2.fixed.{en,fr}.gz
    test-full.tgz                               newstest2014-fren-{src.en,ref.fr}.sgm, 3,003 lines

The steps are those of published results. The punctuation of the training text is normalized. The text is tokenized,
dashes split (``-a``). Every 1333rd pair validates. 40,000 BPE merges are learned on the others. Pairs with 1 to 250
pieces and a ratio of lengths of up to 1.5 are kept. In the test set, ``’`` becomes ``'`` before tokenization. The
conversion takes many hours. Output, see ``common/text_preparation.py``::

    OUT/{train,val,test}.{en,fr}        one sentence of subword pieces per line
    OUT/{val,test}.raw.{en,fr}          as published
    OUT/bpe.codes, OUT/vocabulary.txt, OUT/corpus.json

With ``--vocab-from PREPARED``, a test set alone is converted for a trained model: that of ``--test STEM``, published
text such as ``newstest2015.en`` and ``newstest2015.de``.
"""

import argparse
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import mmattn.utils.command
from common.archives import unpack
from common.conversion import run_converter
from common.published_text import check_pairs, find_files, find_pairs, iter_pairs, read_segments
from common.text_preparation import CorpusWriter, Limits, check_sources, map_pairs
from common.translation import (
    add_arguments,
    add_other_counts,
    add_test_stems,
    check_counts,
    convert_test,
    corpus_folder,
    prepare,
    report,
    tokens_of_test,
    warn,
)
from mmattn.language.text.subwords import TextProcessor, check_codes, undo_bpe
from mmattn.language.text.text_files import read_lines
from mmattn.utils.faults import Faults, FaultsError
from mmattn.utils.files import write_text

SEGMENTED = {
    'train': 'train.tok.clean.bpe.32000',
    'val': 'newstest2013.tok.bpe.32000',
    'test': 'newstest2014.tok.bpe.32000',
}
PUBLISHED = {'val': 'newstest2013', 'test': 'newstest2014'}
NEWSTEST_2014 = 'newstest2014-fren-src.en.sgm', 'newstest2014-fren-ref.fr.sgm'
COUNTS = {SEGMENTED['val']: 3000, SEGMENTED['test']: 3003, NEWSTEST_2014[0]: 3003}
TEST_ARCHIVE = {'test-full.tgz': [*NEWSTEST_2014]}
CORPORA = {  # in the order in which every 1333rd pair is counted
    'training-parallel-europarl-v7.tgz': 'europarl-v7.fr-en',
    'training-parallel-commoncrawl.tgz': 'commoncrawl.fr-en',
    'training-parallel-un.tgz': 'undoc.2000.fr-en',
    'training-parallel-nc-v9.tgz': 'news-commentary-v9.fr-en',
    'training-giga-fren.tar': 'giga-fren.release2.fixed',
}
MOSES = dict(normalize=True, aggressive_dashes=True)


def convert_en_de(args: argparse.Namespace, scratch: Path) -> None:
    if args.merges is not None or args.lowercase is not None:
        raise FaultsError('--merges and --lowercase are options of en-fr; the release of en-de is already segmented')
    languages = 'en', 'de'
    root = unpack(args.release, scratch)
    faults = Faults()
    segmented = find_pairs(root, SEGMENTED.values(), languages, faults)
    published = find_pairs(root, PUBLISHED.values(), languages, Faults())  # optional
    vocabularies = find_files(root, ['bpe.32000', 'vocab.bpe.32000'], faults)
    counts = check_pairs({**segmented, **published}, faults)
    check_counts(counts, COUNTS, args, faults)
    for split, stem in PUBLISHED.items():
        if len({counts[name] for name in (stem, SEGMENTED[split]) if name in counts}) == 2:
            faults.add(
                published[stem][0],
                f'{counts[stem]:,} sentences, but {segmented[SEGMENTED[split]][0]} has {counts[SEGMENTED[split]]:,}',
            )
    lines = {}
    for name, path in vocabularies.items():
        with faults.catch(path):
            lines[name] = read_lines(path)
            if name == 'bpe.32000':
                check_codes(lines[name])
    faults.check()

    pieces = {split: list(iter_pairs(*segmented[SEGMENTED[split]])) for split in PUBLISHED}
    for split, pairs in pieces.items():
        check_sources(split, pairs)
    moses = dict(escape=True)
    english, german = (TextProcessor(language, None, lowercase=False, **moses) for language in languages)
    writer = CorpusWriter(scratch / 'new', languages)
    train = iter_pairs(*segmented[SEGMENTED['train']])
    copied = map_pairs((str, str), train, description='copying', total=counts[SEGMENTED['train']])
    writer.write_training(pair for pair, _ in copied)
    for split, stem in PUBLISHED.items():
        if stem in published:
            raw = list(iter_pairs(*published[stem]))
        else:
            warn([f'{root}: no {stem}.en and {stem}.de in it; {split}.raw is detokenized text'])
            raw = [
                (english.detokenize(undo_bpe(one)), german.detokenize(undo_bpe(other))) for one, other in pieces[split]
            ]
        writer.write_evaluation(split, zip(raw, pieces[split], strict=True))
    if unlisted := writer.symbols.keys() - set(lines['vocab.bpe.32000']):
        warn([f'{vocabularies["vocab.bpe.32000"]}: {len(unlisted):,} symbols of the training text are not in it'])
    report(args, writer.finish(lines['bpe.32000'], lowercase=False, moses=moses), writer.warnings)


def find_archived(root: Path, needed: dict[str, list[str]], scratch: Path, faults: Faults) -> dict[str, Path]:
    """Find the files of each archive in a folder, unpacked or in the archive. Return their paths."""
    files = find_files(root, [*needed, *chain(*needed.values())], Faults())
    incomplete = {archive: names for archive, names in needed.items() if not files.keys() >= {*names}}
    missing = [(archive, names) for archive, names in incomplete.items() if archive not in files]
    Faults(root, [f'neither {archive} nor {" and ".join(names)} in it' for archive, names in missing]).check()
    for archive, names in incomplete.items():
        files.update(find_files(unpack(files[archive], scratch), names, Faults()))
        faults.add(files[archive], *(f'no {name} in it' for name in names if name not in files))
    return files


def convert_en_fr(args: argparse.Namespace, scratch: Path) -> None:
    """Clean, tokenize and segment the published corpora."""
    languages = 'en', 'fr'
    root = args.release
    if not root.is_dir():
        raise FaultsError(root, 'not a folder')
    needed = {archive: [f'{stem}.{language}' for language in languages] for archive, stem in CORPORA.items()}
    faults = Faults()
    files = find_archived(root, {**needed, **TEST_ARCHIVE}, scratch, faults)
    pairs = {
        stem: (files[f'{stem}.en'], files[f'{stem}.fr'])
        for stem in CORPORA.values()
        if files.keys() >= {f'{stem}.en', f'{stem}.fr'}
    }
    counts = check_pairs(pairs, faults)
    if files.keys() >= {*NEWSTEST_2014}:
        paths = tuple(files[name] for name in NEWSTEST_2014)
        check_counts(check_pairs({NEWSTEST_2014[0]: paths}, faults, read_segments), COUNTS, args, faults)
    faults.check()
    for stem, count in counts.items():
        print(f'{stem}: {count:,} pairs', flush=True)
    lowercase = bool(args.lowercase)
    prepare(
        args,
        scratch,
        languages,
        chain.from_iterable(iter_pairs(*paths) for paths in pairs.values()),
        zip(*(read_segments(files[name]) for name in NEWSTEST_2014), strict=True),
        merges=args.merges or 40000,
        lowercase=lowercase,
        moses=MOSES,
        validate_every=1333,
        piece_limits=Limits(longest=250, ratio=1.5),
        test_tokens=tuple(
            tokens_of_test(language, lowercase, **{**MOSES, 'normalize': False}) for language in languages
        ),
        total=sum(counts.values()),
    )


def write_test(root: Path, scratch: Path) -> Path:
    """Write the published test set of en-fr, in ``test-full.tgz`` or unpacked, as lines of text to a folder."""
    faults = Faults()
    files = find_archived(root, TEST_ARCHIVE, scratch, faults)
    if not faults:
        check_pairs({NEWSTEST_2014[0]: tuple(files[name] for name in NEWSTEST_2014)}, faults, read_segments)
    faults.check()
    for name, language in zip(NEWSTEST_2014, ('en', 'fr')):
        lines = ''.join(f'{line}\n' for line in read_segments(files[name]))
        write_text(scratch / 'published' / f'newstest2014.{language}', lines)
    return scratch / 'published'


def convert(args: argparse.Namespace) -> None:
    if args.out_dir is None:
        args.out_dir = Path('data', f'wmt14_{args.pair.replace("-", "_")}')
    with corpus_folder(args, [args.release]) as scratch:
        if args.vocab_from:
            if args.pair == 'en-fr' and not args.stems:
                args.release = write_test(args.release, scratch)
            return convert_test(args, scratch, ['newstest2014'], published=True, chosen=args.pair.split('-'))
        {'en-de': convert_en_de, 'en-fr': convert_en_fr}[args.pair](args, scratch)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Convert WMT'14 to a corpus for training.")
    parser.add_argument('pair', choices=['en-de', 'en-fr'], help='English–German or English–French')
    parser.add_argument('release', type=Path, help='folder or archive of en-de, folder of en-fr')
    parser.add_argument('--out-dir', type=Path, help='default: data/wmt14_en_de or data/wmt14_en_fr')
    add_arguments(parser, merges='40,000 for en-fr', lowercase='no')
    add_test_stems(parser)
    add_other_counts(parser)
    return run_converter(convert, parser, argv)


if __name__ == '__main__':
    mmattn.utils.command.run(main)
