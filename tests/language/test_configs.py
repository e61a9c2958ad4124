"""Shipped configs take a training step and predict, through the stock Runner, at a small size.

Their learning rates, parameters and operations, and options of their pages, are those of the papers.
"""

import argparse
import math
import re
import shutil

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import PARAM_SCHEDULERS
from mmengine.runner import Runner

from analysis_tools.get_flops import count
from mmattn.engine import add_config_options, load_config
from mmattn.language.grounding.entities import rank_words, read_entities
from mmattn.language.layers.entangled_attention import MODES
from mmattn.language.text.vocabulary import PAD, UNK
from mmattn.registry import DATASETS, MODELS
from mmattn.utils import config_path

from ..support.language_releases import glove, skip_thought
from ..test_configs import GROUNDING
from ..tiny_data import ANSWERS, FEATURES, QUESTION_WORDS, SYMBOLS, WORDS, questions
from .files import read_json, write_json

IWSLT = 'bi_sa/{}_iwslt_1xb4000-50k_iwslt14-de-en.py'
TERMS = 'attention_terms_nmt/{}_base_8xb3750-100k_wmt14-en-de.py'
# One per method, data set, size, schedule and stage; the first of each task runs by default.
TEXT = [
    'bi_sa/bi-sa_big_8xb3584-80k_wmt14-en-fr.py',
    IWSLT.format('sa-rpe'),
    TERMS.format('attn1111-deform'),
    'bi_sa/torch_tiny_1xb4096_multi30k-en-de.py',
    'bi_sa/bi-sa_tiny_1xb4096_multi30k-en-de.py',
    *(IWSLT.format(method) for method in ('dynamic-conv', 'sa', 'bi-sa')),
    'bi_sa/nsa_base_8xb3125-100k_wmt14-en-de.py',
    *map(TERMS.format, ('attn1111', 'attn0100-nk31', 'dynconv31', 'wo', 'wo-deform')),
]
CAPTIONS = [
    'ng_san/ng-san_1xb10-15e_coco-captions.py',
    'ng_san/torch_small_1xb10-scst-2e_flickr8k.py',
    'ng_san/n-san-vatex_1xb10-15e_vatex.py',
    'ng_san/n-san-vatex_1xb10-scst-15e_vatex.py',
    'eta/eta_1xb15-15e_coco-captions.py',
    'ng_san/san_1xb10-scst-15e_coco-captions.py',
    'ng_san/san_small_1xb10-10e_flickr8k.py',
    'eta/eta-visual_small_1xb10-10e_flickr8k.py',
    'eta/eta_small_1xb10-10e_flickr8k.py',
    'eta/eta_1xb15-scst-15e_coco-captions.py',
    'eta/eta-ensemble_1xb15-scst-15e_coco-captions.py',
    'eta/eta-ensemble-3_1xb15-scst-15e_coco-captions.py',
    'eta/eta-visual-semantic-ensemble_1xb15-scst-15e_coco-captions.py',
]
QUESTIONS = [
    'ban/ban-4_1xb512-13e_vqa2.py',
    'fusion/fg_small_1xb64-3200_easy-vqa.py',
    'ban/co-attention_small_1xb64-26e_coco-qa.py',
    'ban/ban-8-glove-counter_1xb512-13e_vqa2-trainval-genome.py',
    'ban/unitary_1xb512-13e_vqa2.py',
    'ban/question-only_small_1xb64-26e_coco-qa.py',
    'ban/image-only_small_1xb64-26e_coco-qa.py',
    'ban/concat_small_1xb64-3200_easy-vqa.py',
    'ban/ban-2_small_1xb64-3200_easy-vqa.py',
    'fusion/mutan_1xb128-100e_vqa1.py',
    'fusion/grid_1xb128-5e_vqa1.py',
    'fusion/ne-fg-phi_1xb128-100e_vqa2-test.py',
    'fusion/ne-fg-phi_1xb128-100e_vqa2-trainval.py',
    'fusion/ps_small_1xb128-20e_coco-qa.py',
    'ng_san/mcan-gsa_1xb64-13e_vqa2-trainval-genome.py',
    'ng_san/mcan_1xb64-13e_vqa2.py',
]
TRAINED = [
    *(names[0] for names in (TEXT, QUESTIONS, CAPTIONS, GROUNDING)),
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for names in (TEXT, QUESTIONS, CAPTIONS, GROUNDING)
        for name in names[1:]
    ),
]
SMALL = dict(num_features=FEATURES, num_layers=1, embed_dim=16, num_heads=2, feedforward_dim=24)


def shrink_captioner(cfg, folder):
    for model in cfg.model.get('members', [cfg.model]):
        model.update(SMALL, vocab_size=4 + len(WORDS))
        model.test_cfg.update(beam=2, max_length=3)
    cfg.val_evaluator.tokenizer = cfg.test_evaluator.tokenizer = 'simple'
    if 'self_critical' in cfg.model:
        cfg.load_from = str(folder / 'first_stage.pth')
        torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict()), cfg.load_from)


def shrink_grounder(cfg, folder):
    data = cfg.train_dataloader.dataset
    symbols = rank_words(read_entities(f'{data.data_root}/{data.ann_file}'))
    cfg.model.update(vocab_size=4 + len(symbols), num_features=FEATURES, embed_dim=8)
    cfg.model.scorer.embed_dim = 24
    assert bool(cfg.get('custom_hooks')) == ('flickr30k' in cfg.filename)  # published word vectors
    cfg.custom_hooks = []


def shrink_answerer(cfg, folder):
    cfg.model.update(vocab_size=4 + len(QUESTION_WORDS), num_answers=len(ANSWERS), num_features=FEATURES)
    if cfg.model.type == 'mmattn.MCAN':
        cfg.model.update(SMALL, word_dim=6, fused_dim=6)
        return
    mixed = any(hook.get('mixture') for hook in cfg.get('custom_hooks', []))
    cfg.model.question_encoder.update(word_dim=12 if mixed else 6, embed_dim=8)
    if cfg.model.head.type == 'mmattn.FusionHead':
        cfg.model.head.update(query_dim=4, value_dim=4, pooled_dim=6, out_dim=5)


def shrink_translator(cfg, folder):
    cfg.model.update(size='tiny', vocab_size=len(SYMBOLS) + 4)
    cfg.model.test_cfg.update(beam=2, max_length=(0, 3))


# The configs, how they become small, and the largest value of each figure.
KINDS = [
    (TEXT, shrink_translator, dict(BLEU=100, sacreBLEU=100)),
    (CAPTIONS, shrink_captioner, {'CIDEr-D': 1000}),
    (QUESTIONS, shrink_answerer, dict(accuracy=100)),
    (GROUNDING, shrink_grounder, {'R@1': 100}),
]


@pytest.fixture
def config(request, small, tmp_path, monkeypatch):
    """With word vectors and a GRU, as published."""
    name = request.param
    if name in QUESTIONS:
        for path in ('glove/glove.6B.300d.txt', 'glove/glove.840B.300d.txt'):
            glove(tmp_path / path, QUESTION_WORDS[:3], 6)
        skip_thought(tmp_path / 'skip', ['is', 'dog'], 6)
        monkeypatch.setenv('GLOVE_ROOT', str(tmp_path / 'glove'))
        monkeypatch.setenv('SKIP_THOUGHT_ROOT', str(tmp_path / 'skip'))
    cfg = small(name)
    [(shrink, cfg.figures)] = [(shrink, figures) for names, shrink, figures in KINDS if name in names]
    shrink(cfg, tmp_path)
    return cfg


@pytest.mark.parametrize('config', TRAINED, indirect=True)
def test_config_trains_and_predicts(config):
    runner = Runner.from_cfg(config)
    if 'members' in config.model:  # an ensemble is for tests only
        assert 0 <= runner.test()['CIDEr-D'] <= 1000
    else:
        before = {name: p.detach().clone() for name, p in runner.model.named_parameters()}
        runner.train()
        for name, most in config.figures.items() if config.val_cfg is not None else ():
            assert 0 <= runner.message_hub.get_scalar(f'val/{name}').current() <= most
        moved = {name for name, p in runner.model.named_parameters() if not torch.equal(p, before[name])}
        untouched = {'question_encoder'} if 'image-only' in config.filename else set()
        assert {name.split('.')[0] for name in moved} == {name.split('.')[0] for name in before} - untouched
        if config.filename.endswith(tuple(GROUNDING)):
            assert all('glimpses.bias' in name for name in before.keys() - moved)
    for sample in runner.model.test_step(next(iter(runner.test_dataloader))):
        if 'n_best' in sample:
            assert math.isfinite(sample.pred_score)
            assert len(sample.n_best) == 2
            assert len(sample.pred_tokens) <= 3
            unknown = {3} if 'raw_target' in sample else set()  # a caption has no <unk>
            assert set(sample.pred_tokens) <= {0, *unknown, *range(4, config.model.get('vocab_size', 4 + len(WORDS)))}
        else:
            answers = (2, len(sample.regions)) if 'regions' in sample else (len(ANSWERS),)
            assert sample.pred_scores.shape == answers
            assert sample.pred_scores.isfinite().all()


@pytest.mark.parametrize(
    ('name', 'expected'),
    [
        ('san_15e', [1e-4, 2e-4, *[3e-4] * 4, *[1.5e-4] * 3, *[7.5e-5] * 3, *[3.75e-5] * 3]),
        ('caption_small', [1e-3 / 3, *[1e-3] * 4, *[5e-4] * 3, *[2.5e-4] * 2]),
        ('ban_13e', [1e-3, 2e-3, 3e-3, *[4e-3] * 7, 1e-3, 1e-3, 2.5e-4]),
        ('ban_26e', [5e-4, 1e-3, 1.5e-3, *[2e-3] * 17, *[5e-4] * 4, 1.25e-4, 1.25e-4]),
        ('ban_13e_bs256', [5e-4, 1e-3, 1.5e-3, *[2e-3] * 7, 5e-4, 5e-4, 1.25e-4]),
        ('mcan_13e', [2.5e-5, 5e-5, 7.5e-5, *[1e-4] * 7, 2e-5, 2e-5, 4e-6]),
        ('fusion_100e', [1e-4] * 100),
        ('fusion_20e', [4e-4] * 20),
    ],
)
def test_rate_of_each_epoch(name, expected):
    cfg = Config.fromfile(config_path(f'_base_/schedules/{name}.py'))
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=cfg.optim_wrapper.optimizer.lr)
    schedulers = [PARAM_SCHEDULERS.build(dict(each, optimizer=optimizer)) for each in cfg.param_scheduler]
    found = []
    for _ in range(cfg.train_cfg.max_epochs):
        found.append(optimizer.param_groups[0]['lr'])
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize('data', ['coco-captions', 'vatex'])
def test_stages_of_ng_san_have_adam_as_the_code_that_it_cites(data):
    name = f'ng_san/{"n-san-vatex" if data == "vatex" else "ng-san"}_1xb10-{{}}15e_{data}.py'
    first, second = (Config.fromfile(config_path(name.format(stage))) for stage in ('', 'scst-'))
    for cfg, betas, eps in ((first, (0.9, 0.98), 1e-9), (second, (0.9, 0.999), 1e-8)):
        assert (tuple(cfg.optim_wrapper.optimizer.betas), cfg.optim_wrapper.optimizer.eps) == (betas, eps)
    (schedule,) = second.param_scheduler
    assert (schedule.milestones, schedule.gamma, second.optim_wrapper.optimizer.lr) == ([5], 0.5, 1e-5)


def test_operations_of_grounding():
    """20 steps of the GRU, both projections, and the logits of 4 phrases and 32 regions."""
    cfg = Config.fromfile(config_path('ban_grounding/ban_1xb512-13e_flickr30k-entities.py'))
    gru = 20 * 3 * (300 + 1024) * 1024
    projections = 4 * 1024 * 3072 + 32 * 2048 * 3072
    parameters, macs = count(cfg, (3, 32, 20))
    assert abs(macs - (gru + projections + 4 * 32 * 3072)) / macs < 0.01
    embedding = 300 * cfg.model.vocab_size
    linear = (1024 + 2048 + 2) * 3072 + 2 + 3072 + 2
    assert parameters == embedding + 3 * 1024 * (300 + 1024 + 2) + linear


# Translation.


@pytest.mark.parametrize('name', ['attn1111-deform', 'wo-deform'])
def test_offsets_learn_at_a_tenth_of_the_rate(name):
    """Footnote 2 of the study, in encoder and decoder."""
    cfg = Config.fromfile(config_path(TERMS.format(name)))
    cfg.model.update(size='tiny', vocab_size=10)
    model = MODELS.build(cfg.model)
    groups = build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    rates = {names[id(p)]: group['lr'] for group in groups for p in group['params']}
    offsets = [name for name in rates if '.offset.' in name]
    assert len(offsets) == 2 * 8  # weight and bias of each layer
    assert {name: 1e-4 if name in offsets else 1e-3 for name in rates} == pytest.approx(rates)


def in_both(option, value, layer=''):
    return {f'model.{part}_attention{layer}.{option}': value for part in ('encoder', 'decoder')}


def deformed(terms):
    return 'attn1111-deform', in_both('terms', terms, '.1')


# The paper's G multiply-accumulates, Tables 2 and 3; rows of one figure have one entry.
PUBLISHED = {
    'w/o': (1.7, 'wo', {}),
    'w/o + deformable': (2.2, 'wo-deform', {}),
    **{terms: (2.7, 'attn1111', in_both('terms', terms)) for terms in ('1111', '1100', '0111')},
    '0100': (2.6, 'attn1111', in_both('terms', '0100')),
    '1111 + deformable': (3.2, *deformed('1111')),
    '1001 + deformable': (3.2, *deformed('1001')),
    '1000 + deformable': (2.9, *deformed('1000')),
    '0011 + deformable': (3.0, *deformed('0011')),
    '0010 + deformable': (2.7, *deformed('0010')),
    '0001 + deformable': (2.9, *deformed('0001')),
    '0100, n_k = 31': (2.4, 'attn0100-nk31', {}),
    '0100, n_k = 13': (
        2.3,
        'attn0100-nk31',
        {**in_both('spatial_range', 13), 'model.decoder_attention.spatial_range': 25},
    ),
    'dynamic, n_k = 31': (2.4, 'dynconv31', {}),
    'dynamic, n_k = 13': (2.3, 'dynconv31', in_both('kernel_size', 13)),
}


@pytest.mark.slow
@pytest.mark.parametrize('row', PUBLISHED)
def test_published_operations(row):
    """With 50 + 50 tokens and without the output layer, within the 0.1 G to which the paper prints; as on the page."""
    published, name, options = PUBLISHED[row]
    cfg = Config.fromfile(config_path(TERMS.format(name)))
    cfg.merge_from_dict(options)
    ours = (count(cfg, (3, 50, 50))[1] - 50 * 512 * 32768) / 1e9
    assert abs(ours - published) < 0.1
    page = config_path('attention_terms_nmt/README.md').read_text(encoding='utf-8')
    [line] = re.findall(rf'^\| [^|]*\b{row.split(" + ")[0]}(?!, n_k)[^|]*\|.*base_8x.*$', page, re.MULTILINE)
    regular, _, deformable = line.split('|')[4].partition('/')
    assert f'{ours:.2f}' == (deformable if 'deformable' in row else regular).strip()


@pytest.mark.slow
def test_operations_of_translation():
    """Of source length M and target length L; a causal layer counts all pairs, as torch's layers do."""
    m, n, d, f, v = 25, 20, 128, 256, 5036
    encoder = 4 * d * d * m + 2 * m * m * d + 2 * d * f * m
    own, cross = 4 * d * d * n + 2 * n * n * d, 2 * d * d * (n + m) + 2 * n * m * d
    expected = 4 * (encoder + own + cross + 2 * d * f * n) + v * d * n
    found = {}
    for method in ('sa', 'torch', 'bi-sa'):
        cfg = Config.fromfile(config_path(f'bi_sa/{method}_tiny_1xb4096_multi30k-en-de.py'))
        found[method] = count(cfg, (3, m, n))
    assert found['sa'][1] == expected
    # Bi-SA adds two linear layers: to d channels, and to the entries of 4 heads.
    added = 4 * (d * d * (m + n) + d * 4 * (21 * m + 11 * n))
    assert found['bi-sa'] == (found['sa'][0] + 4 * (2 * (d * d + d) + (d + 1) * 4 * (21 + 11)), expected + added)
    assert found['torch'][0] == found['sa'][0]


# Captioning.


@pytest.mark.parametrize(
    ('name', 'dropout'), [('san_1xb10-15e_coco-captions', 0.1), ('san_small_1xb10-10e_flickr8k', 0)]
)
def test_attention_weights_of_the_decoder_are_dropped_as_in_the_paper(name, dropout):
    """NG-SAN follows Transformer-Base with dropout 0.1; the small configs are as they were measured."""
    cfg = Config.fromfile(config_path(f'ng_san/{name}.py'))
    for layer in MODELS.build(dict(cfg.model, **SMALL, vocab_size=4 + len(WORDS))).decoder.layers:
        assert layer.self_attention[0].dropout == layer.cross_attention.dropout == dropout


def test_vatex_has_ten_captions_of_up_to_30_words(tiny_data, tmp_path, monkeypatch):
    root = shutil.copytree(tiny_data['VATEX_ROOT'], tmp_path / 'vatex')
    path = root / 'vatex_training_v1.0.json'
    videos = read_json(path)
    videos[0]['enCap'] = [' '.join([word] * count) for word in WORDS[:2] for count in (1, 16, 17, 30, 31)]
    write_json(path, videos)
    monkeypatch.setenv('VATEX_ROOT', str(root))
    cfg = Config.fromfile(config_path('ng_san/n-san-vatex_1xb10-scst-15e_vatex.py'))
    captions = DATASETS.build(cfg.train_dataloader.dataset)[0]['inputs']['captions']
    assert sorted((captions != PAD).sum(1).tolist()) == sorted([2, 17, 18, 31, 31] * 2)  # with </s>
    assert cfg.model.test_cfg == dict(beam=3, max_length=30)


@pytest.mark.slow
def test_operations_of_captioning():
    """Of N regions, M attributes and T words; a causal layer counts all pairs, as torch's layers do."""
    n, m, t, d, f, v, channels, heads, geometry = 36, 20, 16, 128, 256, 2269, 128, 4, 64
    regions, attributes = (4 * d * d * k + 2 * k * k * d + 2 * d * f * k for k in (n, m))
    to_regions, to_attributes = (2 * d * d * (t + k) + 2 * k * t * d for k in (n, m))
    decoder = 4 * d * d * t + 2 * t * t * d + to_regions + 2 * d * f * t
    expected = channels * d * n + 2 * (regions + decoder) + v * d * t
    found = {}
    for name in ('ng_san/san', 'ng_san/torch', 'ng_san/n-san', 'ng_san/g-san', 'eta/eta-visual', 'eta/eta'):
        cfg = Config.fromfile(config_path(f'{name}_small_1xb10-10e_flickr8k.py'))
        found[name.split('/')[1]] = count(cfg, (3, n, t))
    assert found['san'][1] == expected
    assert found['san'] == found['torch'] == found['n-san'] == found['eta-visual']
    # G of all pairs, Q', and their products.
    added = 4 * geometry * n * n + d * heads * geometry * n + heads * geometry * n * n
    weights = 4 * geometry + geometry + (d + 1) * heads * geometry
    assert found['g-san'] == (found['san'][0] + 2 * weights, expected + 2 * added)
    # A second encoder; in each layer of the decoder three more attentions with their norms, and the gate.
    added = attributes + to_regions + 2 * to_attributes + 3 * d * d * t
    weights = (4 * d * d + 9 * d + 2 * d * f + f) + 3 * (4 * d * d + 6 * d) + 3 * d * d + d
    assert found['eta'] == (found['eta-visual'][0] + 2 * weights, expected + 2 * added)


ETA = config_path('eta/eta_1xb15-15e_coco-captions.py')
ETA_TINY = ['vocab_size=20', 'num_features=8', 'num_layers=1', 'embed_dim=8', 'num_heads=2', 'feedforward_dim=8']


def options():
    """The options beside a figure of the paper, in the tables of the page."""
    page = config_path('eta/README.md').read_text(encoding='utf-8').split('\n## ')[1]
    return re.findall(r'\| \d+\.\d+ \| `([^`]+=[^`]+)` \|', page)


NAMED = {'visual', 'semantic', 'True', 'sigmoid', 'tanh', 'relu', 'identity', *MODES} - {'entangled'}


@pytest.mark.parametrize('words', options())
def test_an_option_of_the_page_builds_its_row(words):
    """All of those that the ablations have."""
    assert {each.rpartition('=')[2] for each in options()} == NAMED
    parser = argparse.ArgumentParser()
    add_config_options(parser)
    given = ['--cfg-options', *words.split(), *(f'model.{word}' for word in ETA_TINY)]
    cfg = load_config(ETA, parser.parse_args(given).cfg_options)
    model = MODELS.build(cfg.model)
    name, value = words.split()[-1].split('=')
    if name == 'model.sources':
        assert hasattr(model, 'visual_encoder') == (value == 'visual')
        return
    if 'oracle' in name:
        dataset = cfg.test_dataloader.dataset
        assert (dataset.attributes, dataset.oracle_attributes) == (None, True)
        return
    attention = model.decoder.layers[0].cross_attention
    if name.endswith('mode'):
        assert tuple(attention.sublayers) == MODES[value]
    else:
        assert attention.controller.activation == value


# Visual questions.


def test_mcan_reads_words_and_targets_as_its_code(tmp_path, monkeypatch):
    """proc_ques and proc_ans of mcan-vqa, literally; the vocabulary has all splits and Visual Genome."""
    questions(tmp_path, genome=True)
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


@pytest.mark.slow
def test_operations_of_visual_questions():
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
