"""Shipped configs take a training step and predict, through the stock Runner, at a small size; rates of epochs."""

import math
import os

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import PARAM_SCHEDULERS
from mmengine.runner import Runner

from mmattn.language.grounding.entities import rank_words, read_entities
from mmattn.registry import MODELS
from mmattn.utils import config_path
from mmattn.utils.complexity import count
from reproduction.language_releases import glove, skip_thought

from ..test_configs import GROUNDING
from ..tiny_data import ANSWERS, FEATURES, QUESTION_WORDS, SYMBOLS, WORDS

IWSLT = 'bi_sa/{}_iwslt_1xb4000-50k_iwslt14-de-en.py'
TERMS = 'attention_terms_nmt/{}_base_8xb3750-100k_wmt14-en-de.py'
# One per method, data set, size, schedule and stage; the first three on text, and on questions, are not slow.
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
    *(TEXT[:3] + QUESTIONS[:3]),
    *(pytest.param(name, marks=pytest.mark.slow) for name in TEXT[3:] + QUESTIONS[3:]),
    *CAPTIONS,
    *GROUNDING,
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
    for hook in cfg.get('custom_hooks', []):
        hook.file = hook.file.replace(os.environ['VQA2_ROOT'], str(folder / 'vqa2'))
    if cfg.model.type == 'mmattn.MCAN':
        cfg.model.update(SMALL, word_dim=6, fused_dim=6)
        return
    cfg.model.question_encoder.update(word_dim=6, embed_dim=8)
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
        for path in ('glove/glove.6B.300d.txt', 'glove/glove.840B.300d.txt', 'vqa2/word_vectors_600.txt'):
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


def test_multiply_accumulates():
    """20 steps of the GRU, both projections, and the logits of 4 phrases and 32 regions."""
    cfg = Config.fromfile(config_path('ban_grounding/ban_1xb512-13e_flickr30k-entities.py'))
    gru = 20 * 3 * (300 + 1280) * 1280
    projections = 4 * 1280 * 3840 + 32 * 2048 * 3840
    parameters, macs = count(cfg, (3, 32, 20))
    assert abs(macs - (gru + projections + 4 * 32 * 3840)) / macs < 0.01
    embedding = 300 * cfg.model.vocab_size
    linear = (1280 + 2048 + 2) * 3840 + 2 + 3840 + 2
    assert parameters == embedding + 3 * 1280 * (300 + 1280 + 2) + linear
