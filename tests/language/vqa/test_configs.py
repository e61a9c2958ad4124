"""Shipped configs of visual questions: what their names say, parameters, words and operations."""

import json
import re

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from mmattn.language.text.vocabulary import PAD, UNK
from mmattn.registry import DATASETS
from mmattn.utils import config_path
from mmattn.utils.complexity import count

from ... import tiny_data as tiny
from ...test_configs import QUESTIONS
from ..files import read_json, write_json

GATE = dict(relations=['add', 'multiply'], groups=[[0, 1, 2, 3], [4]])
FUSIONS = dict(
    mlb=dict(num_branches=1),
    ne=dict(query_activation=['identity', 'leaky_relu', 'selu', 'sigmoid', 'tanh'], value_activation='selu'),
    fg=dict(GATE, squash=['identity'] * 4 + ['sigmoid']),
    ps=dict(GATE, squash=['identity'] * 4 + ['tanh']),
    phi=dict(post_network=dict(hidden_dim=128, num_blocks=2)),
    concat=dict(hidden=True),
)
HEADS = {
    'unitary': 'UnitaryHead',
    'co-attention': 'CoAttentionHead',
    'concat': 'ConcatHead',
    'question-only': 'QuestionOnlyHead',
    'image-only': 'ImageOnlyHead',
}


@pytest.mark.parametrize('name', QUESTIONS)
def test_the_config_is_that_of_its_name(name):
    """Head, size and data; which data the test has, and what starts from published files."""
    cfg = Config.fromfile(config_path(name))
    pattern = r'(\w+)/([\w-]+?)_(small_)?1xb\d+-\d+e?_([\w-]+)\.py'
    folder, method, small, data = re.fullmatch(pattern, name).groups()
    model, fusion = cfg.model, folder == 'fusion'
    assert data.split('-test')[0].split('-trainval')[0].replace('-', '_') in cfg.train_dataloader.dataset.data_root
    dataset = cfg.train_dataloader.dataset
    mcan = folder == 'ng_san'
    assert (dataset.get('tokens', 'ban'), dataset.get('target', 'soft'), model.get('loss', 'binary')) == (
        ('skip-thought', 'sampled', 'cross_entropy') if fusion else ('mcan' if mcan else 'ban', 'soft', 'binary')
    )
    without_val = 'trainval' in data
    assert (cfg.val_cfg is None) == (cfg.default_hooks.checkpoint.save_best is None) == without_val
    adam = mcan or (fusion and data != 'easy-vqa')
    rate = (4e-4 if small else 1e-4) if adam else 4e-3 if '1xb512' in name else 2e-3
    assert (cfg.optim_wrapper.optimizer.type, cfg.optim_wrapper.optimizer.lr) == ('Adam' if adam else 'Adamax', rate)
    on_val = data in ('vqa1', 'vqa2')
    assert cfg.test_dataloader.dataset.ann_file == f'questions_{"val" if on_val else "test"}.json'
    hooks = [hook.type for hook in cfg.get('custom_hooks', [])]
    assert hooks == ([] if small else ['mmattn.WordVectorHook'])
    assert ('image_encoder' in model) == ('images' in dataset) == (data == 'easy-vqa')
    if mcan:
        assert model.type == 'mmattn.MCAN'
        geometry = model.get('region_attention', {}).get('geometry')
        assert geometry == ('query_dependent' if 'gsa' in method else None)
        return
    encoder = model.question_encoder
    if fusion:
        found = json.loads(json.dumps(model.head.fusion.to_dict()))  # with lists in place of tuples
        assert found.pop('type') == ('mmattn.ConcatFusion' if method == 'concat' else 'mmattn.HadamardFusion')
        assert found == {key: x for part in method.split('-') for key, x in FUSIONS.get(part, {}).items()}
        assert (encoder.get('word_dim', 620), encoder.get('embed_dim', 2400)) == ((300, 512) if small else (620, 2400))
        assert (encoder.pretrained is None) == bool(small)
        return
    assert model.head.type == f'mmattn.{HEADS.get(method, "BANHead")}'
    assert encoder.word_dim == (600 if 'glove' in method else 300)
    wide = method in ('unitary', 'co-attention') or without_val
    assert encoder.embed_dim == (256 if small else 1280 if wide else 1024)
    assert ('counter' in model.head) == ('counter' in method)
    if method.startswith('ban-'):
        assert model.head.num_glimpses == int(method.split('-')[1])


@pytest.mark.parametrize(
    ('name', 'head', 'expected'),
    [
        ('unitary_1xb512-13e_vqa2', {}, 31_864_297),
        ('co-attention_1xb512-13e_vqa2', {}, 32_520_684),
        ('ban-4_1xb512-13e_vqa2', {}, 44_799_734),
        ('ban-4_1xb512-13e_vqa2', dict(mode='sum'), 44_799_734),
        ('ban-4_1xb512-13e_vqa2', dict(mode='concat'), 51_091_190),
        *(('ban-4_1xb512-13e_vqa2', dict(num_glimpses=n), 32_198_378 + (n - 1) * 4_200_452) for n in (1, 2, 12)),
        ('ban-8-glove-counter_1xb512-13e_vqa2-trainval-genome', {}, 90_618_430 - 8),
    ],
)
def test_parameters_of_the_paper(name, head, expected):
    """With its vocabulary, 19,901 words and padding; f1 … f8 of the counter lack the weights that are fixed at 0."""
    cfg = Config.fromfile(config_path(f'ban/{name}.py'))
    init_default_scope('mmengine')
    cfg.model.vocab_size = 19_902
    cfg.model.head.update(head)
    with torch.device('meta'):
        model = MODELS.build(cfg.model)
    assert sum(p.numel() for p in model.parameters()) == expected


def test_mcan_reads_words_and_targets_as_its_code(tmp_path, monkeypatch):
    """proc_ques and proc_ans of mcan-vqa, literally; the vocabulary has all splits and Visual Genome."""
    tiny.questions(tmp_path, genome=True)
    texts = dict(train="What's on the dog's T-shirt: #1, $5?", test='A (red/blue) *kite*;', genome_val='Seals!')
    for part, text in texts.items():
        path = tmp_path / f'questions_{part}.json'
        data = read_json(path)
        data['questions'][0]['question'] = text
        if part == 'train':
            data['questions'][0].update(
                answers=['Yes.', 'yes', 'the yes', *['No!'] * 2, *['maybe'] * 5], answer='maybe'
            )
        write_json(path, data)
    monkeypatch.setenv('VQA2_ROOT', str(tmp_path))
    cfg = Config.fromfile(config_path('ng_san/mcan_1xb64-13e_vqa2.py')).train_dataloader.dataset
    dataset = DATASETS.build(dict(cfg, min_answers=2))
    published = {
        word
        for path in tmp_path.glob('questions_*.json')
        for question in read_json(path)['questions']
        for word in literal_words(question['question'])
    }
    assert {'whats', 'kite', 'seals', '$5'} <= {*dataset.metainfo['symbols']} == published
    sample = dataset[0]['inputs']
    symbols = dataset.vocabulary.symbols
    assert [symbols[n] for n in sample['question'] if n != PAD] == literal_words(texts['train'])
    assert dataset.tokenizer('the zebra')[1] == UNK
    targets = dict(zip(dataset.answers, sample['targets'].tolist(), strict=True))
    assert targets == pytest.approx(dict(yes=0.9, no=0.6))


def literal_words(text):
    return re.sub(r"""([.,'!?"()*#:;])""", '', text.lower()).replace('-', ' ').replace('/', ' ').split()


def test_operations_are_those_of_the_matrix_products():
    """Of 36 regions and 14 words; weights of one row are not products."""
    k, w, n, m, a = 36, 14, 256, 128, 346
    gru = w * 3 * n * (300 + n)
    classifier = n * 2 * n + 2 * n * a
    found = {}
    for method in ('ban-2', 'question-only', 'concat'):
        cfg = Config.fromfile(config_path(f'ban/{method}_small_1xb64-26e_coco-qa.py'))
        found[method] = count(cfg, (3, k, w))[1]
    cfg = Config.fromfile(config_path('ban/ban-2_small_1xb64-26e_coco-qa.py'))
    cfg.model.head.num_glimpses = 1
    found['ban-1'] = count(cfg, (3, k, w))[1]
    assert found['question-only'] == gru + classifier
    assert found['concat'] == gru + classifier + m * 2 * n
    glimpse = w * k * 3 * n + w * n * n + k * m * n + w * k * n + n * n  # logits, X'', Y'', pool, Lin
    assert found['ban-2'] - found['ban-1'] == glimpse
    assert found['ban-1'] == gru + classifier + (w * n + k * m) * 3 * n + glimpse
