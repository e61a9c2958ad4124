"""The converters of parallel text, on tiny releases in the published layout, and on Multi30k where it is there."""

import argparse
import gzip
import json
import re
import shlex
import shutil

import pytest
from mmengine.config import Config

from common.conversion import output_folder
from common.translation import add_arguments
from mmattn.engine import load_config
from mmattn.language.text.subwords import TextProcessor, undo_bpe
from mmattn.language.text.text_files import read_lines
from mmattn.language.text.vocabulary import Vocabulary
from mmattn.language.translation import BLEU, ParallelTextDataset
from mmattn.registry import DATASETS, METRICS

from ..requirements import real_data, requires
from ..support import language_releases
from ..support.releases import pack, text
from ..support.releases import write_files as written
from .conftest import content, places, scripts

multi30k, iwslt14, wmt14, parallel_text = scripts('multi30k', 'iwslt14', 'wmt14', 'parallel_text')

REAL = real_data('multi30k')


def check_names(out, source, target):
    names = {f'{split}.{language}' for split in ('train', 'val', 'test') for language in (source, target)}
    names |= {f'{split}.raw.{language}' for split in ('val', 'test') for language in (source, target)}
    assert {path.name for path in out.iterdir()} == {
        *names,
        'bpe.codes',
        'vocabulary.txt',
        'corpus.json',
        'converted.txt',
    }


@pytest.mark.parametrize('option', ['merges', 'workers'])
def test_merges_and_workers_are_positive(option, capsys):
    parser = argparse.ArgumentParser()
    add_arguments(parser, '', '')
    assert getattr(parser.parse_args([f'--{option}', '1']), option) == 1
    for value in ('0', '-1', 'x'):
        with pytest.raises(SystemExit):
            parser.parse_args([f'--{option}={value}'])
        assert re.search(rf"--{option}\b.*positive.*'{value}'", capsys.readouterr().err)


def tokens(out, name):
    return [undo_bpe(line) for line in read_lines(out / name)]


# Multi30k.

MULTI30K = language_releases.multi30k(dict(train=4, val=2, test_2016_flickr=3))


def test_outputs_within_the_release_are_no_part_of_it(command, tmp_path):
    """Neither whole ones, nor what a killed conversion left."""
    source, options = written(MULTI30K, tmp_path / 'raw'), ['--merges', 12, '--allow-other-counts', '--overwrite']

    def converted(out):
        assert command(multi30k, source, *options, '--out-dir', out, out=None)[0] == 0
        return content(out)

    expected = converted(tmp_path / 'outside')
    assert converted(source / 'en-de') == expected
    with output_folder(source / 'killed', False, [], []) as scratch:
        shutil.copytree(source / 'en-de', scratch / 'new', ignore=shutil.ignore_patterns('converted.txt'))
        assert converted(source / 'en-de') == expected


@pytest.mark.parametrize('form', ['folder', 'test.zip'])
def test_a_test_set_for_a_trained_model(command, fails, out, tmp_path, form):
    """With codes and vocabulary of the prepared folder: where it is the same test set, with the same result."""
    prepared, source = tmp_path / 'prepared', written(MULTI30K, tmp_path / 'raw')
    assert command(multi30k, source, '--merges', 12, '--allow-other-counts', '--out-dir', prepared, out=None)[0] == 0
    new = {name.replace('test_2016', 'test_2017'): data for name, data in MULTI30K.items() if name.startswith('test')}
    folder = written(new, tmp_path / 'new') if form == 'folder' else pack(tmp_path / form, new)
    options = [folder, '--vocab-from', prepared, '--test', 'test_2017_flickr']
    code, said, warnings = command(multi30k, *options)
    assert (code, warnings) == (0, [])
    assert said[-1].startswith(f'{out}: 3 test pairs, 12 merges, ')
    files = content(out)
    tests = {name for name in content(prepared) if 'test' in name}
    assert files.keys() == {'bpe.codes', 'vocabulary.txt', 'corpus.json', *tests}
    assert all(data == (prepared / name).read_bytes() for name, data in files.items() if name != 'corpus.json')
    data = ParallelTextDataset(str(out), 'test', test_mode=True)
    assert data.metainfo == ParallelTextDataset(str(prepared), 'train').metainfo
    out.rename(tmp_path / 'kept')
    for tool, more, names in (
        ([multi30k], ['--source', 'de', '--target', 'en'], f'{prepared}: .*de to en'),
        ([wmt14, 'en-fr'], [], f'{prepared}: .*en to fr'),
        ([multi30k], ['--lowercase'], str(prepared)),
    ):
        assert re.search(names, fails(*tool, *options, *more)[0])
    assert 'no test_2016_flickr.en' in fails(multi30k, *options[:3])[0]
    assert '--vocab-from' in fails(multi30k, folder, '--test', 'a')[0]
    before = content(prepared)
    code, _, said = command(multi30k, *options, '--overwrite', '--out-dir', prepared, out=None)
    assert (code, content(prepared)) == (1, before)
    assert str(prepared) in ' '.join(said)


@pytest.mark.parametrize('form', ['folder', '2014-01.tgz', 'en-fr'])
def test_a_published_test_set_for_a_trained_model(command, out, tmp_path, form):
    """In XML, and with the tokens of published results, as in the conversion of the whole release."""
    prepared, tool, others = tmp_path / 'prepared', [iwslt14], []
    if form == 'en-fr':
        tool, source, others = [wmt14, 'en-fr'], english_french(tmp_path / 'wmt14'), ['--allow-other-counts']
    else:
        source = iwslt(tmp_path, form)
    assert command(*tool, source, '--merges', 30, *others, '--out-dir', prepared, out=None)[0] == 0
    assert command(*tool, source, '--vocab-from', prepared)[0] == 0
    same = content(out)
    del same['corpus.json']
    assert len(same) == 6
    assert all(data == (prepared / name).read_bytes() for name, data in same.items())


@pytest.mark.slow
@requires('multi30k')
def test_the_real_multi30k(command, out):
    code, said, warnings = command(multi30k, REAL, '--merges', 500)
    on_the_way = 'tokenizing:', 'learning BPE:', 'segmenting:'  # printed where the machine is slow
    warnings = [line for line in warnings if not line.startswith(on_the_way)]
    assert (code, warnings) == (0, [])
    assert said[-1].startswith(f'{out}: 29,000 train, 1,014 val, 1,000 test pairs, 500 merges, ')
    vocabulary = Vocabulary.from_file(out / 'vocabulary.txt')
    for language in ('en', 'de'):
        published = gzip.decompress((REAL / f'test_2016_flickr.{language}.gz').read_bytes()).decode().split('\n')[:-1]
        assert read_lines(out / f'test.raw.{language}') == published
        processor = TextProcessor.from_corpus(out, language)
        assert tokens(out, f'test.{language}') == [processor.tokenize(line) for line in published]
        lines = read_lines(out / f'train.{language}')
        assert len(lines) == 29000
        assert all(vocabulary.decode(vocabulary.encode(line)) == line for line in lines)
        restored = [processor.detokenize(line) for line in tokens(out, f'test.{language}')]
        assert sum(a.split() == b.lower().split() for a, b in zip(restored, published)) > 900


# IWSLT'14.


IWSLT = language_releases.iwslt14(iwslt14.TESTS)


def iwslt(folder, form):
    """The path of the release: a folder, or the archive of all languages, packed or not."""
    if form == 'folder':
        return written(IWSLT, folder / 'release')
    archive = pack(folder / 'de-en.tgz', {f'de-en/{name}': data for name, data in IWSLT.items()})
    if form == 'nested folder':
        return written({'texts/de/en/de-en.tgz': archive.read_bytes()}, folder / 'release')
    names = {'2014-01/texts/de/en/de-en.tgz': archive.read_bytes(), '2014-01/texts/en/de/en-de.tgz': b'other'}
    return pack(folder / form, names)


# WMT'14 English–French.


CORPORA = language_releases.wmt14_en_fr(wmt14.CORPORA)


def english_french(root):
    """The folder of the archives."""
    root.mkdir()
    for archive, files in CORPORA.items():
        pack(root / archive, files, 'w' if archive.endswith('.tar') else 'w:gz')
    return root


@pytest.mark.parametrize('form', ['archives', 'files'])
def test_english_french(command, out, tmp_path, form):
    root = english_french(tmp_path / 'wmt14')
    if form == 'files':
        for archive, files in CORPORA.items():
            (root / archive).unlink()
            written(files, root)
    code, said, warnings = command(wmt14, 'en-fr', root, '--merges', 40, '--allow-other-counts')
    assert code == 0
    assert warnings == ['warning: newstest2014-fren-src.en.sgm: 2 sentences, the release has 3,003']
    lines = [line for line in said if line.endswith(': 267 pairs')]
    assert lines == [f'{stem}: 267 pairs' for stem in wmt14.CORPORA.values()]
    check_names(out, 'en', 'fr')
    record = json.loads((out / 'corpus.json').read_text(encoding='utf-8'))
    assert record['moses'] == dict(normalize=True, aggressive_dashes=True)
    assert record['lowercase'] is False
    ends = [(number, i) for number in range(5) for i in range(267)]
    held_out = ends.pop(1332)
    ends.remove((3, 5))  # its translation is too long
    assert [record['counts'], record['dropped']] == [dict(train=1333, val=1, test=2), 1]
    expected = [f'A dog @-@ house {number} , {i} ...' for number, i in ends]
    assert tokens(out, 'train.en') == expected
    assert tokens(out, 'train.fr')[0] == 'Une " niche " 0 , 0 ...'
    assert tokens(out, 'val.fr') == [f'Une " niche " {held_out[0]} , {held_out[1]} ...']
    assert read_lines(out / 'val.raw.fr') == [f'Une « niche » {held_out[0]}, {held_out[1]}…']
    assert tokens(out, 'test.en') == ["The dog 's house .", 'R & D']
    assert tokens(out, 'test.fr') == ["L ' « hôtel » Dieu , l' hôte .", 'R & D']
    assert read_lines(out / 'test.raw.fr') == ['L’« hôtel » Dieu, l’hôte.', 'R&D']


def test_all_faults_of_english_french(fails, tmp_path):
    root = tmp_path / 'wmt14'
    root.mkdir()
    pack(root / 'test-full.tgz', CORPORA['test-full.tgz'])
    faults = fails(wmt14, 'en-fr', root)
    assert len(faults) == 5
    assert 'training-parallel-europarl-v7.tgz' in faults[0]
    assert 'europarl-v7.fr-en.fr' in faults[0]
    for files in list(CORPORA.values())[:5]:
        written(files, root)
    (root / 'training/europarl-v7.fr-en.fr').write_bytes(b'one\n')
    counts = [f'{root}/training/europarl-v7.fr-en.en', 'newstest2014-fren-src.en.sgm']
    assert places(fails(wmt14, 'en-fr', root)) == counts
    pack(root / 'test-full.tgz', {'test-full/other': b''})
    assert places(fails(wmt14, 'en-fr', root)) == [f'{root}/test-full.tgz'] * len(wmt14.NEWSTEST_2014) + counts[:1]


# Text of one's own.

PAIRS = [(f'A dog runs {n // 2} miles.', f'Ein Hund läuft {n} Meilen.') for n in range(120)]  # two for each source
SIDES = ['--source', 'en', '--target', 'de', '--merges', 12]


def own_text(folder, form):
    """The arguments for files with PAIRS and two incomplete pairs."""
    pairs = [*PAIRS[:50], ('', 'leer'), ('empty', ' '), *PAIRS[50:]]
    if form == 'two files':
        written({'a.en': text(a for a, _ in pairs), 'a.de.gz': gzip.compress(text(b for _, b in pairs))}, folder)
        return [folder / 'a.en', folder / 'a.de.gz']
    order = {'table': '{0}\t{1}\tmine', 'columns': '7\t{1}\t{0}'}[form]
    written({'a.tsv': text([*(order.format(*pair) for pair in pairs), ''])}, folder)
    return [folder / 'a.tsv', *(['--columns', 3, 2] if form == 'columns' else [])]


@pytest.mark.parametrize('form', ['table', 'columns', 'two files'])
def test_own_text_is_divided_by_its_source_sentences(command, out, tmp_path, form):
    """No pair is lost, and none of a held-out sentence is in the training. The config has the size of the corpus."""
    code, said, warnings = command(parallel_text, *own_text(tmp_path, form), *SIDES)
    assert (code, warnings) == (0, [])
    rows = {
        name: [*zip(tokens(out, f'{name}.en'), tokens(out, f'{name}.de'), strict=True)]
        for name in ('train', 'val', 'test')
    }
    processors = [TextProcessor(language, None, lowercase=False, joins=True) for language in ('en', 'de')]
    expected = [tuple(p.tokenize(line) for p, line in zip(processors, pair)) for pair in PAIRS]
    assert sorted(pair for split in rows.values() for pair in split) == sorted(expected)
    assert all(split == [pair for pair in expected if pair in split] for split in rows.values())  # in their order
    sources = [{source for source, _ in split} for split in rows.values()]
    assert sum(map(len, sources)) == len(PAIRS) // 2
    assert all(2 <= len(rows[name]) <= 20 for name in ('val', 'test'))
    counts = ', '.join(f'{len(split)} {name}' for name, split in rows.items())
    assert sorted(re.findall(r'\d+ (?:train|val|test)', said[0])) == sorted(counts.split(', '))
    assert shlex.split(said[-1]) == ['python', 'tools/train.py', f'{out}/config.py']
    cfg = Config.fromfile(out.rename(tmp_path / 'moved') / 'config.py')
    for name, loader in (('train', cfg.train_dataloader), ('val', cfg.val_dataloader), ('test', cfg.test_dataloader)):
        assert (loader.dataset.split, loader.dataset.data_root) == (name, str(tmp_path / 'moved'))
    assert cfg.model.vocab_size == len(DATASETS.build(cfg.train_dataloader.dataset).vocabulary)
    path = tmp_path / 'moved/config.py'
    own = path.read_text(encoding='utf-8')
    for base in ('bi-sa_tiny_1xb4096_multi30k-en-de', 'sa_base_8xb3125-100k_wmt14-en-de'):
        path.write_text(own.replace('bi-sa_tiny_1xb4096_multi30k-en-de', base), encoding='utf-8')
        cfg = load_config(str(path))
        assert cfg.model.size == base.split('_')[1]
        assert not any(METRICS.build(each).compound_split for each in (cfg.val_evaluator, cfg.test_evaluator))


def test_own_text_with_other_splits_and_a_later_test_set(command, out, tmp_path):
    files = own_text(tmp_path, 'table')
    (held,) = own_text(tmp_path / 'b', 'table')
    lines = held.read_text(encoding='utf-8').splitlines()
    held.write_text('\n'.join(lines[:7]), encoding='utf-8')
    assert command(parallel_text, *files, *SIDES, '--lowercase', '--val', held, '--test', held)[0] == 0
    assert read_lines(out / 'val.raw.en') == read_lines(out / 'test.raw.en') == [a for a, _ in PAIRS[:7]]
    assert len(read_lines(out / 'train.en')) == len(PAIRS)
    assert tokens(out, 'test.en')[0] == 'a dog runs 0 miles ￭.'
    prepared = out.rename(tmp_path / 'prepared')
    assert command(parallel_text, held, '--vocab-from', prepared)[0] == 0
    assert all(data == (prepared / name).read_bytes() for name, data in content(out).items() if name != 'corpus.json')
    assert command(parallel_text, *files, *SIDES, '--overwrite')[0] == 0
    assert {path.name for path in out.iterdir()} > {'config.py', 'train.en'}


def test_own_text_is_restored_and_scored_in_full(command, out, tmp_path):
    """With the typography of the web, and into a language without spaces."""
    lines = ['“Don’t,” he said—twice…', '12 m² – 3,5 % : « ça »\u00a0!', "It's e.g. 5-6 (x)."]
    chinese = ['他说：“今天很好！”', '价格是1,200元（含税）——打5折…', '我喜欢iPhone 15的50%。']
    pairs = [(f'{lines[n % 3]} {n}', f'{n} {chinese[n % 3]}') for n in range(90)]
    written({'a.tsv': text('\t'.join(pair) for pair in pairs)}, tmp_path)
    sides = ['--source', 'fr', '--target', 'zh', '--merges', 20]
    code, _, warnings = command(parallel_text, tmp_path / 'a.tsv', *sides)
    assert (code, warnings) == (0, [])
    for language in ('fr', 'zh'):
        processor = TextProcessor.from_corpus(out, language)
        raw = read_lines(out / f'test.raw.{language}')
        assert [processor.detokenize(line) for line in tokens(out, f'test.{language}')] == raw
    data = ParallelTextDataset(str(out), 'test', test_mode=True)
    metric = BLEU()
    metric.dataset_meta = data.metainfo
    for sample in data:
        prediction = sample['data_samples']
        prediction.pred_tokens = sample['inputs']['target'][:-1].tolist()
        metric.process({}, [prediction.to_dict()])
    assert metric.evaluate(len(data)) == dict(BLEU=pytest.approx(100), sacreBLEU=pytest.approx(100))


@pytest.mark.parametrize(
    ('arguments', 'names'),
    [
        (['a', 'b', 'c', *SIDES], '^train: .*3 files'),
        (['a.tsv'], '--source'),
        (['a.tsv', '--source', 'en', '--target', 'en'], '--source'),
        (['a.tsv', '--source', 'en', '--target', 'xx'], "'xx'"),
        (['short.tsv', *SIDES], 'short.tsv, line 2: 1 column'),
        (['a.tsv', *SIDES, '--columns', 1, 1], '1 and 1'),
        (['a.tsv', 'two', *SIDES], 'two.* ends before line 3'),
        (['two.tsv', *SIDES], 'two.tsv: too few .*--val'),
        (['missing.tsv', *SIDES], 'missing.tsv: '),
        (['a.tsv', '--vocab-from', 'prepared', '--lowercase'], 'prepared sets'),
    ],
)
def test_faults_of_own_text(fails, tmp_path, monkeypatch, arguments, names):
    own_text(tmp_path, 'table')
    pairs = text(['one\teins', 'two\tzwei'])
    written({'short.tsv': text(['one\teins', 'two']), 'two.tsv': pairs, 'two': pairs}, tmp_path)
    monkeypatch.chdir(tmp_path)
    (fault,) = fails(parallel_text, *arguments)
    assert re.search(names, fault)
