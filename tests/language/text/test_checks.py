"""The vocabularies of data, model and checkpoint, through the Runner."""

from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.runner import Runner

from mmattn.check import CheckHook
from mmattn.check.driver import find_faults
from mmattn.language.translation import ParallelTextDataset
from mmattn.registry import DATASETS

from ...tiny_data import SYMBOLS, parallel_text

COUNT = len(SYMBOLS) + 4
CONFIG = 'bi_sa/sa_tiny_1xb4096_multi30k-en-de.py'


@pytest.fixture
def build(small, tmp_path):
    """Return a Runner for the corpora of training, validation and test."""

    def run(*roots, vocab_size=COUNT, **options):
        cfg = small(CONFIG)
        for key, root in zip(('train', 'val', 'test'), roots * (3 // len(roots))):
            cfg[f'{key}_dataloader'].dataset.data_root = str(root)
        cfg.model.update(vocab_size=vocab_size)
        cfg.model.test_cfg.update(beam=1, max_length=(0, 2))
        cfg.train_cfg.update(val_interval=10)
        cfg.default_hooks.checkpoint.update(interval=1)
        cfg.experiment_name = f'{tmp_path.name} {len(list(tmp_path.rglob("*")))}'
        cfg.merge_from_dict(options)
        runner = Runner.from_cfg(cfg)
        runner.register_hook(CheckHook())
        return runner

    return run


@pytest.fixture
def corpus(tmp_path):
    """Write a corpus with a vocabulary, and return its folder."""

    def write(name, symbols=SYMBOLS):
        parallel_text(tmp_path / name, 'en', 'de', symbols)
        return tmp_path / name

    return write


def found(*data_sets):
    model = SimpleNamespace(modules=list, num_features=None, num_answers=None, reads_attributes=False)
    return find_faults(SimpleNamespace(cfg=Config(), model=model), (), data_sets)


@pytest.mark.slow
def test_an_embedding_of_another_size_is_a_fault(build, corpus, tmp_path):
    root = corpus('a')
    for start in ('train', 'test'):
        with pytest.raises(ValueError, match=rf'(?s){root}/vocabulary.txt: .*--cfg-options model.vocab_size=10'):
            getattr(build(root, vocab_size=5036), start)()
    assert 'vocabulary.txt: vocab_size is 10, 4 of them special' in (tmp_path / 'work/check.txt').read_text(
        encoding='utf-8'
    )
    build(root, vocab_size=12, check=dict(allow=['vocabulary'])).train()


def test_an_unreadable_vocabulary_is_a_fault_with_its_line(build, corpus):
    root = corpus('a')
    runner = build(root)
    (root / 'vocabulary.txt').write_text('a 1\nb c\n', encoding='utf-8')
    with pytest.raises(ValueError, match=rf'{root}/vocabulary.txt.*line 2'):
        runner.call_hook('before_loops')


def test_data_sets_agree_with_the_first(corpus):
    """Vocabulary and direction of each are compared with those of the training, and both files are named."""
    roots = corpus('a'), corpus('b', (*SYMBOLS[:4], 'e@@', 'f', 'g')), corpus('c', SYMBOLS[:5])
    built = [DATASETS.build(dict(type='mmattn.ParallelTextDataset', data_root=str(x), split='train')) for x in roots]
    faults = found(*built)
    assert {fault.place for fault in faults} == {f'{root}/vocabulary.txt' for root in roots[1:]}
    assert all(f'{roots[0]}/vocabulary.txt' in fault.text for fault in faults)
    for languages, places in ((dict(source='de', target='en'), [f'{roots[0]}/corpus.json'] * 2), ({}, [])):
        other = ParallelTextDataset(data_root=str(roots[0]), split='val', **languages)
        assert [fault.place for fault in found(built[0], other)] == places


def test_a_checkpoint_with_other_symbols_is_an_error(build, corpus, tmp_path):
    """Of the same number: the weights fit, but their rows are of other symbols."""
    train, other = corpus('a'), corpus('b', (*SYMBOLS[:2], 'd', 'c', *SYMBOLS[4:]))
    build(train).train()
    path = str(tmp_path / 'work/iter_1.pth')
    build(train, load_from=path).test()
    message = r"b/vocabulary.txt: symbol 6 is 'd', but 'c' .*iter_1.pth"
    for start in ('test', 'train'):
        with pytest.raises(ValueError, match=message):
            getattr(build(other, load_from=path), start)()
    longer = corpus('c', (*SYMBOLS, 'g'))
    with pytest.raises(ValueError, match="symbol 10 is 'g'"):
        build(longer, vocab_size=11, load_from=path).test()
    checkpoint = torch.load(path, weights_only=False)
    del checkpoint['meta']['dataset_meta']  # nothing to compare
    torch.save(checkpoint, path)
    build(other, load_from=path).test()
