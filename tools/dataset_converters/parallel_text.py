"""Prepare your own parallel text for training: one table, or one file per language.

    python tools/dataset_converters/parallel_text.py pairs.tsv --source en --target de --out-dir data/mine
    python tools/dataset_converters/parallel_text.py train.en train.de --source en --target de --out-dir data/mine \\
        --val val.en val.de --test test.en test.de

A table has one pair per line, its columns are separated by tabs, and further columns are ignored. All files are UTF-8,
possibly compressed (``.gz``). Without ``--val`` or ``--test``, a twentieth of the pairs, up to about 1,000, is held out
for each. A hash of the source sentence chooses them, so that no held-out sentence is also in the training text.

By default, the text keeps its case. ``--lowercase`` makes the vocabulary smaller, which helps with little text, but
the model then reads and writes lower case. Output, see ``common/text_preparation.py``::

    OUT/{train,val,test}.{en,de}        one sentence of subword pieces per line
    OUT/{val,test}.raw.{en,de}          as given
    OUT/bpe.codes, OUT/vocabulary.txt, OUT/corpus.json
    OUT/config.py                       for ``tools/train.py``, ``tools/test.py`` and ``tools/translation_demo.py``

With ``--vocab-from PREPARED``, the files are a test set for a model that was trained on that folder.
"""

import argparse
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

import mmattn.utils.command
from common.conversion import check_config_folder, run_converter, train_command
from common.published_text import Pair, iter_pairs, iter_table
from common.text_preparation import prepare_test
from common.translation import add_arguments, corpus_folder, prepare, report
from mmattn.language.text.vocabulary import SPECIALS
from mmattn.utils.faults import Faults, FaultsError
from mmattn.utils.files import write_text

CONFIG = """\
# Written by tools/dataset_converters/parallel_text.py. The model is small, for a first try on a CPU. For a full
# training, use another config as _base_, such as 'mmattn::bi_sa/bi-sa_iwslt_1xb4000-50k_iwslt14-de-en.py'.
_base_ = ['mmattn::bi_sa/bi-sa_tiny_1xb4096_multi30k-en-de.py']
dataset = dict(data_root='{{{{ fileDirname }}}}')
train_dataloader = dict(dataset=dataset)
val_dataloader = dict(dataset=dataset)
test_dataloader = dict(dataset=dataset)
val_evaluator = dict(compound_split=False)  # which some bases have for their data
test_evaluator = val_evaluator
model = dict(vocab_size={size})
"""


def hold_out(pair: Pair, names: Sequence[str], every: int) -> str:
    """Choose the split of a pair: each of ``names`` gets one in ``every`` source sentences, 'train' gets the others."""
    source = pair[0].strip().lower()
    number = int.from_bytes(sha256(source.encode()).digest()[:8]) % every
    return names[number] if number < len(names) and source and pair[1].strip() else 'train'


def convert(args: argparse.Namespace) -> None:
    given = {name: files for name in ('train', 'val', 'test') if (files := getattr(args, name))}
    faults = Faults()
    for name, files in given.items():
        if len(files) > 2:
            faults.add(name, f'give one table, or two files, source first; got {len(files)} files')
    options = args.source, args.target, args.val, args.test, args.merges, args.lowercase
    if args.vocab_from and options != (None,) * len(options):
        faults.add('', f'{args.vocab_from} sets all other options but --columns')
    elif not args.vocab_from and (args.source == args.target or None in (args.source, args.target)):
        faults.add('', '--source and --target must be the two languages, such as en and de')
    with faults.catch():
        check_config_folder(args.out_dir)
    faults.check()

    def read(name: str) -> Iterator[Pair]:
        files = given[name]
        return iter_pairs(*files) if len(files) == 2 else iter_table(files[0], tuple(args.columns))

    with corpus_folder(args, [file for files in given.values() for file in files], ['config.py']) as scratch:
        if args.vocab_from:
            return report(args, *prepare_test(scratch / 'new', args.vocab_from, read('train')))
        totals = {name: sum(1 for _ in read(name)) for name in given}  # all files are read before work starts
        held_out, every = [name for name in ('val', 'test') if name not in given], max(20, totals['train'] // 1000)

        def choose(name: str) -> Iterator[Pair]:
            if name in given and name != 'train':
                return read(name)
            return (pair for pair in read('train') if hold_out(pair, held_out, every) == name)

        counts = {name: sum(1 for _ in choose(name)) for name in ('train', *held_out)}
        if not all(counts.values()):
            raise FaultsError(args.train[0], 'too few pairs to hold some out; give --val and --test')
        record = prepare(
            args,
            scratch,
            (args.source, args.target),
            *map(choose, ('train', 'test', 'val')),
            merges=args.merges or 5000,
            lowercase=bool(args.lowercase),
            moses=dict(joins=True),
            total=counts['train'],
        )
        write_text(scratch / 'new/config.py', CONFIG.format(size=record['vocabulary'] + len(SPECIALS)))
    print(f'Train with\n{train_command(args.out_dir / "config.py")}')


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description='Prepare your own parallel text for training.')
    parser.add_argument('train', type=Path, nargs='+', metavar='FILE', help='a table, or two files, source first')
    for name in ('val', 'test'):
        parser.add_argument(
            f'--{name}', type=Path, nargs='+', metavar='FILE', help='the same; default: pairs that are held out'
        )
    parser.add_argument('--source', metavar='CODE', help='language of the source, such as en')
    parser.add_argument('--target', metavar='CODE', help='language of the target, such as de')
    parser.add_argument(
        '--columns',
        type=int,
        nargs=2,
        default=(1, 2),
        metavar='N',
        help='of source and target in a table; default: 1 2',
    )
    parser.add_argument('--out-dir', type=Path, required=True)
    add_arguments(parser, merges='5,000', lowercase='no')
    return run_converter(convert, parser, argv)


if __name__ == '__main__':
    mmattn.utils.command.run(main)
