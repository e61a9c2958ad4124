"""The configs that are made of a table's rows: on other data, shorter, smaller."""

import re
from copy import deepcopy
from functools import reduce
from operator import getitem
from pathlib import Path

import pytest
from mmengine.config import Config

from mmattn.utils import config_path
from reproduction.plan import _training, check_data, plan, words, write_configs
from reproduction.protocol import Protocol, _fit_to_data, _scale_images, read_data, shipped
from reproduction.tables import add_variant, read_tables
from reproduction.task import ProtocolError, find_task, has_own_test

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TABLES = read_tables()
# Data sets, and the tables that are planned on them: one for each of the rows' tasks.
TABLES_OF = {
    'camvid': '2 3 3.1 3.2 3.3 3.4 4.2',
    'bccd': '2 3 bccd',
    'fasseg': '4.3 4.4 fasseg',
    'fasseg_turned': '4.3',
    'lfw_pl': '4.4',
    'davis_240p': '5.1 5.2 davis',
    'davis_2016': '5.3',
    'davis_2017': '5.4',
    'multi30k_en-de': '3.5 3.6 3.7 terms-nmt-2 terms-nmt-3 terms-nmt-3d ngsan-8 multi30k',
    'iwslt14_de-en': '3.5',
    'flickr8k': 'ngsan-1 ngsan-2 ngsan-3 ngsan-4 ngsan-6 ngsan-7 flickr8k',
    'flickr8k_attributes': '2.1 2.2 2.4 2.5 2.6',
    'flickr8k_grounding': 'ban-4 ban-4-code flickr8k-entities',
    'coco_qa': 'ngsan-vqa ngsan-vqa-val ban-1 ban-2 fusion-3.1 fusion-3.2 fusion-3.2-trainval fusion-grid coco-qa',
    'coco_vqa_mini': 'ban-1 fusion-text',
    'daquar': 'ban-3 daquar',
    'easy_vqa': 'fusion-3.1 easy-vqa',
}
DATA = [(table, dataset) for dataset, tables in TABLES_OF.items() for table in tables.split()]
# Rows have data of their own.
OWN_DATA = '2.2', 'flickr8k', 'coco-qa', 'daquar', 'easy-vqa', 'fasseg', 'davis', 'bccd'

OF_FUSION = {path.stem.removesuffix('_fusion') for path in config_path('_base_/datasets').glob('*_fusion.py')}
QUESTIONS = (*sorted(OF_FUSION - {'vqa2'}),)  # its test has no answers
PARTS = 'train', 'val', 'test'


def small(dataset, data, iterations=2):
    protocol = Protocol(dataset, iterations, 0.1 if dataset == 'camvid' else 1.0, small=True)
    return protocol, read_data(dataset, data[dataset])


@pytest.mark.parametrize(('table', 'dataset'), [pair for pair in DATA if pair[0] not in OWN_DATA])
def test_rows_differ_in_the_model_alone(table, dataset, data):
    """Same data, batch, budget and optimizer for all rows, and no two of them are the same."""
    protocol, source = small(dataset, data)
    methods = plan(TABLES[table], protocol, source)
    check_data(methods)
    configs = [method.configs[-1].to_dict() for method in methods]
    models = [config.pop('model') for config in configs]
    classes = dict(camvid=11, bccd=3, fasseg=6, fasseg_turned=6, lfw_pl=3).get(dataset)
    assert set(re.findall(r"'num_classes': (\d+)", str(models))) == ({str(classes)} if classes else set())
    assert all(config == configs[0] for config in configs)
    # Once, unless the validation data are others than those of the test.
    tested_on_others = 'lfw_pl', 'multi30k', 'iwslt14', 'flickr8k', *QUESTIONS
    interval = 1 if dataset.startswith(tested_on_others) else 2
    assert configs[0]['train_cfg'] == dict(type='IterBasedTrainLoop', max_iters=2, val_interval=interval)
    assert all(model not in models[:i] for i, model in enumerate(models))
    assert {row.name for method in methods for row in method.rows} == {row.name for row in TABLES[table]}
    names = [method.name for method in methods]
    assert len(set(names)) == len(names)
    assert {method.baseline for method in methods if method.baseline} <= set(names)
    own = dataset in ('lfw_pl', 'iwslt14_de-en') or table in ('multi30k', 'flickr8k-entities')
    assert [f'{dataset} in place of {methods[0].rows[0].data}' in words(methods, protocol, source)] == [not own]


def test_rows_of_captions_differ_in_model_attributes_and_stages(data):
    """Self-critical training starts from the row's own first stage, and has its own schedule also if small."""
    protocol, source = small('flickr8k', data)
    methods = plan(TABLES['flickr8k'], protocol, source)
    check_data(methods)
    configs = [[cfg.to_dict() for cfg in method.configs] for method in methods]
    for stages, method in zip(configs, methods):
        model = stages[0].pop('model')
        read = [stage[f'{part}_dataloader']['dataset'].pop('attributes', None) for stage in stages for part in PARTS]
        reads_attributes = model['type'] == 'mmattn.ETACaptioner'
        assert read == ['attributes.json' if reads_attributes else None] * 3 * len(stages)
        assert stages[0] == configs[0][0]
        assert len(stages) == 1 + ('self-critical' in method.name)
        for stage in stages[1:]:
            assert stage.pop('model') == {**model, 'self_critical': dict(samples=5, baseline='mean')}
            assert stage.pop('custom_hooks') == [dict(type='mmattn.SelfCriticalHook')]
            assert stage['optim_wrapper']['optimizer'].pop('lr') == 5e-5
            assert stage.pop('param_scheduler') == [dict(type='ConstantLR', factor=1.0, by_epoch=False)]
            others = {key: value for key, value in stages[0].items() if key != 'param_scheduler'}
            assert {**stage, 'optim_wrapper': None} == {**others, 'optim_wrapper': None}
    # A baseline may have a baseline, too.
    chosen = plan(TABLES['flickr8k'], protocol, source, ['NG-SAN, self-critical'])
    names = ['nn.Transformer', 'SAN', 'NG-SAN', 'NG-SAN, self-critical']
    assert [(method.name, method.baseline) for method in chosen] == [*zip(names, [None, *names])]


@pytest.mark.parametrize('table', ['coco-qa', 'easy-vqa'])
def test_rows_of_questions_have_the_targets_of_their_loss(table, data):
    """Also on other data; words and answers are counted in them."""
    for name in QUESTIONS:
        methods = plan(TABLES[table], *small(name, data))
        check_data(methods)
        for method in methods:
            cfg = method.configs[-1]
            fusion = method.rows[0].configs[-1].startswith('fusion/')
            dataset = cfg.train_dataloader.dataset
            assert dataset.get('target', 'soft') == ('sampled' if fusion else 'soft')
            assert dataset.get('tokens', 'ban') == ('skip-thought' if fusion else 'ban')
            assert ('image_encoder' in cfg.model) == ('images' in dataset) == (name == 'easy_vqa')
            assert (cfg.model.vocab_size, cfg.model.num_answers) == (10, 2)
            assert cfg.custom_hooks == []
            assert cfg.train_dataloader.batch_size == (128 if fusion and table == 'coco-qa' else 64)
            inputs = f'inputs of {"64×64 pixels" if name == "easy_vqa" else "36 regions"} and 14 words'
            own = name.replace('_', '-') == table
            assert (inputs in words([method], Protocol(name), read_data(name, data[name]))) == (not own)


@pytest.mark.parametrize(
    ('table', 'dataset', 'options', 'names'),
    [
        ('fusion-3.2', None, {}, r'questions_test\.json'),
        ('ban-1', 'vqa1', {}, 'targets .*--dataset'),
        ('ban-1', 'coco_qa', dict(scale=0.5), '--scale .*ban-1'),
    ],
)
def test_questions_whose_answers_are_not_published_or_have_other_targets(data, table, dataset, options, names):
    protocol = Protocol(dataset, 2, small=dataset is not None, **options)
    with pytest.raises(ProtocolError, match=names):
        check_data(plan(TABLES[table], protocol, dataset and read_data(dataset, data[dataset])))


def test_the_oracle_has_the_attributes_of_the_references(data):
    methods = plan(TABLES['2.2'], *small('flickr8k_attributes', data))
    check_data(methods)
    ours, oracle = ({m.name: m.configs[0].to_dict() for m in methods}[name] for name in ('ETA', 'ETA, oracle'))
    assert oracle['test_dataloader']['dataset'].pop('attributes') is None
    assert oracle['test_dataloader']['dataset'].pop('oracle_attributes')
    assert ours['test_dataloader']['dataset'].pop('attributes') == 'attributes.json'
    assert oracle == ours


@pytest.mark.slow
@pytest.mark.parametrize(
    ('table', 'dataset'),
    [
        *((table, None) for table in TABLES if table not in '23'),
        *((table, name) for table in '23' for name in ('cityscapes', 'coco_detection')),
        ('3.1', 'ade20k'),
    ],
)
def test_the_papers_protocol_is_the_shipped_config(table, dataset):
    """Model, optimizer and schedule are untouched; one process has the batch of all, and scores at the end."""
    data = dataset and read_data(dataset, None)
    for method in plan(TABLES[table], Protocol(dataset), data):
        assert len(method.configs) == len(method.rows[0].configs)
        for cfg, known in zip(method.configs, map(deepcopy, map(shipped, method.rows[0].configs))):
            known.merge_from_dict(method.rows[0].options)
            for key in ('model', 'optim_wrapper', 'param_scheduler', 'test_dataloader', 'tta_pipeline'):
                assert cfg.get(key) == known.get(key)
            if find_task(known) == 'text':
                known.train_dataloader.batch_sampler.max_tokens = method.rows[0].batch_size
            else:
                known.train_dataloader.batch_size = method.rows[0].batch_size
            assert cfg.train_dataloader == known.train_dataloader
            if has_own_test(known):  # the best checkpoint was chosen on other data
                assert cfg.default_hooks.checkpoint == known.default_hooks.checkpoint
                assert cfg.train_cfg == known.train_cfg
            else:
                assert cfg.default_hooks.checkpoint.save_best is None
        assert words([method], Protocol(dataset), data) == []


def test_the_test_is_no_validation(data):
    """Where the validation has the data of the test, by whatever metric, it is done once and chooses no checkpoint."""
    protocol, source = small('camvid', data)
    for method in plan(TABLES['3.2'], protocol._replace(iterations=24), source):
        assert method.configs[0].train_cfg.val_interval == 24
        assert method.configs[0].default_hooks.checkpoint.save_best is None
    for table, name in (('ban-1', 'BAN-1'), ('ban-2', 'BAN-*'), ('ngsan-vqa-val', 'MCAN*'), ('fusion-3.1', 'NE')):
        for method in plan(TABLES[table], Protocol(), None, [name]):
            assert method.configs[0].train_cfg.val_interval == method.configs[0].train_cfg.max_epochs
            assert method.configs[0].default_hooks.checkpoint.save_best is None
    (method,) = plan(TABLES['coco-qa'], Protocol(), None, ['BAN-1'])[-1:]
    assert method.configs[0].train_cfg.get('val_interval', 1) == 1
    assert method.configs[0].default_hooks.checkpoint.save_best == 'accuracy'


def test_rows_that_become_the_same_are_run_once(data):
    """Baselines are added unless they are left out."""
    methods = plan(TABLES['3.2'], *small('camvid', data))
    assert [(method.name, method.baseline) for method in methods] == [
        *(('NL', None), ('NL + RPE', 'NL'), ('Bi-NL', 'NL')),
        *(('CC', None), ('CC + RPE', 'CC'), ('Bi-CC', 'CC')),
    ]
    assert [[row.setting for row in method.rows] for method in methods] == [['R50', 'R101']] * 6
    apart = plan(TABLES['3.2'], Protocol('camvid', 2), read_data('camvid', data['camvid']), ['Bi-CC'])
    assert [(method.name, method.baseline) for method in apart] == [
        *(('CC, R50', None), ('Bi-CC, R50', 'CC, R50'), ('CC, R101', None), ('Bi-CC, R101', 'CC, R101'))
    ]
    text = Protocol('multi30k_en-de', 2), read_data('multi30k_en-de', data['multi30k_en-de'])
    both, one = (plan(TABLES['multi30k'], *text, ['SA', 'SA-RPE'], with_baselines) for with_baselines in (True, False))
    assert [method.name for method in both] == ['nn.Transformer', 'SA', 'SA-RPE']
    assert [(method.name, method.baseline) for method in one] == [('SA', None), ('SA-RPE', 'SA')]


def test_a_variant_may_have_a_layer_of_the_user(data, tmp_path, monkeypatch):
    """`custom_imports` names its module, which the plan imports, too, to count parameters."""
    path = tmp_path / 'my_blocks.py'
    path.write_text(
        'from mmattn.registry import MODELS\nfrom mmcv.cnn import ConvModule\n\n\n@MODELS.register_module()\n'
        'class MyBlock(ConvModule):\n    def __init__(self, in_channels, out_channels, norm_cfg, act_cfg):\n'
        '        super().__init__(in_channels, out_channels, 1, norm_cfg=norm_cfg, act_cfg=act_cfg)\n',
        encoding='utf-8',
    )
    options = {
        'custom_imports.imports': ['my_blocks'],
        'model.decode_head.block': dict(_delete_=True, type='mmattn.MyBlock'),
    }
    rows = add_variant(TABLES['4.3'], '1×1', 'U-Net', options)
    protocol = Protocol('fasseg', 2, small=True), read_data('fasseg', data['fasseg'])
    with pytest.raises(ProtocolError, match=r'my_blocks.*PYTHONPATH'):
        plan(rows, *protocol, ['1×1'])
    monkeypatch.syspath_prepend(tmp_path)
    stock, (variant,) = (plan(rows, *protocol, [name])[-1:] for name in ('U-Net', '1×1'))
    assert variant.counts()[0] < stock[0].counts()[0]
    assert 'my_blocks' in variant.configs[0].custom_imports.imports


def test_iterations_shorten_the_schedule_in_proportion(data):
    """By iterations and by epochs, whose warm-up is a tenth at most."""
    (cityscapes,) = plan(TABLES['3.2'], Protocol(iterations=800), None, ['NL'])[:1]
    poly = dict(type='PolyLR', eta_min=0, power=0.9, begin=0, end=800, by_epoch=False)
    assert cityscapes.configs[0].param_scheduler == [poly]
    assert words([cityscapes], Protocol(iterations=800), None) == ['800 iterations of 80,000']
    methods = plan(TABLES['4.3'], Protocol(iterations=1000), None)
    (helen,) = (method for method in methods if method.name == 'U-Net-BA, aligned')
    assert [(step.begin, step.end) for step in helen.configs[0].param_scheduler] == [(0, 29), (29, 1000)]
    protocol = Protocol('coco_detection', 1200), read_data('coco_detection', None)
    (coco,) = plan(TABLES['2'], *protocol, ['w/o'])[:1]
    warm_up, steps = coco.configs[0].param_scheduler
    assert (warm_up.end, steps.end, steps.milestones) == (120, 1200, [800, 1100])
    assert not warm_up.by_epoch | steps.by_epoch
    assert coco.configs[0].train_dataloader.sampler.type == 'mmattn.InfiniteSampler'
    assert words([coco], *protocol) == ['1,200 iterations of 12 epochs']


def test_scale_makes_images_crops_and_tests_smaller(data):
    def config(table, dataset, names=None):
        source = dataset and read_data(dataset, None)
        return plan(TABLES[table], Protocol(dataset, 2, 0.5), source, names)[0].configs[0]

    cfg = config('3.2', 'camvid', ['NL'])
    train, test = (loader.dataset.pipeline for loader in (cfg.train_dataloader, cfg.test_dataloader))
    assert [step.scale for step in train + test if 'scale' in step] == [(240, 180), (240, 180)]
    assert cfg.model.data_preprocessor.size == (180, 180)
    assert cfg.model.test_cfg == dict(mode='whole')
    assert not cfg.model.decode_head.align_corners
    assert cfg.model.decode_head.num_classes == cfg.model.auxiliary_head.num_classes == 11
    # Images that are tested as they are, are resized.
    steps = [step.type for step in config('4.3', 'fasseg').test_dataloader.dataset.pipeline]
    assert steps == ['LoadImageFromFile', 'Resize', 'LoadAnnotations', 'PackSegInputs']
    tta = config('3.1', 'camvid', ['NL']).tta_pipeline[1].transforms[0]
    assert [step.scale_factor for step in tta] == [0.375, 0.5, 0.625, 0.75]
    # The crop of the paper is 8·k + 1, and stays so.
    cfg = config('3.2', None, ['NL'])
    assert cfg.model.data_preprocessor.size == (385, 385)
    assert cfg.model.decode_head.align_corners
    # Classes are those of the data, also where the data set's class, not its config, has them.
    assert config('3.2', 'ade20k', ['NL']).model.decode_head.num_classes == 150


def test_several_data_sets_are_scaled_and_have_the_classes_of_the_first():
    cfg = shipped('bi_cc/bi-cc_r18-d8-half_1xb8-50_buildings-256x256.py')
    cfg.model.decode_head.num_classes = 9
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        loader.dataset = dict(type='ConcatDataset', datasets=[deepcopy(loader.dataset) for _ in range(2)])
    _scale_images(cfg, 0.5)
    _fit_to_data(cfg)
    for dataset in cfg.test_dataloader.dataset.datasets:
        steps = ['LoadImageFromFile', 'Resize', 'LoadAnnotations', 'PackSegInputs']
        assert [step.type for step in dataset.pipeline] == steps
        assert dataset.pipeline[1].scale_factor == 0.5
    assert cfg.model.decode_head.num_classes == 2


def test_stages_are_one_on_another_data_set(data):
    methods = plan(TABLES['5.2'], Protocol(iterations=2, small=True), None)
    assert [len(method.configs) for method in methods] == [3, 3, 3, 3]
    assert [cfg.val_cfg is None for cfg in methods[0].configs] == [True, True, False]  # YouTube-VOS has no truth
    protocol = Protocol('davis_240p', 2)
    methods = plan(TABLES['5.2'], protocol, read_data('davis_240p', None))
    assert [len(method.configs) for method in methods] == [1, 1, 1, 1]
    assert 'the first stage alone' in words(methods, protocol, read_data('davis_240p', None))


def test_steps_and_offsets_of_sst_are_those_of_the_training(data):
    """Frames of 128×176 have a map of 16×22, at half the size of 8×11. The step is √H; the thesis's H is 64."""
    source = read_data('davis_240p', None)
    names = ['SST (Grid)', 'SST (Strided)']
    for scale, step, clip_offset in ((1, 4, (15, 21)), (0.5, 3, (7, 10))):
        grid, strided = plan(TABLES['5.1'], Protocol('davis_240p', 2, scale, True), source, names)
        assert 'step' not in grid.configs[0].model.attention
        assert strided.configs[0].model.attention.step == step
        assert {tuple(method.configs[0].model.attention.clip_offset) for method in (grid, strided)} == {clip_offset}
    paper = plan(TABLES['5.1'], Protocol(), None, names)[-1]
    assert [cfg.model.attention.step for cfg in paper.configs] == [8, 8]


def test_text_keeps_its_vocabulary_batches_and_schedule(data):
    """The symbols are those of the data; only the small network has the batches of the data set."""
    source = read_data('multi30k_en-de', data['multi30k_en-de'])
    rows = [row for row in TABLES['3.5'] if row.data == "WMT'14 En-De"]
    (method,) = plan(rows, protocol := Protocol('multi30k_en-de', 600), source, ['Transformer'])
    cfg = method.configs[0]
    assert cfg.model.vocab_size == 10
    batches = dict(type='mmattn.TokenBatchSampler', max_tokens=8 * 3584, infinite=True)
    assert cfg.train_dataloader.batch_sampler == batches
    assert cfg.train_dataloader.sampler.type == 'mmattn.DefaultSampler'
    warm_up, cosine = cfg.param_scheduler
    assert (warm_up.end, cosine.begin, cosine.end) == (200, 200, 600)
    expected = ["multi30k_en-de in place of WMT'14 En-De", '600 iterations of 480,000']
    assert words([method], protocol, source) == expected
    (method,) = plan(rows, Protocol('multi30k_en-de', 750, small=True, amp=True), source, ['Transformer'])
    cfg = method.configs[0]
    assert cfg.train_dataloader.batch_sampler.max_tokens == 4096
    schedule = Config.fromfile(config_path('_base_/schedules/inverse_root_tiny.py'))
    assert cfg.param_scheduler[0].warmup == schedule.param_scheduler[0].warmup * 750 // schedule.train_cfg.max_iters
    assert cfg.optim_wrapper.type == 'mmattn.AmpTokenOptimWrapper'
    assert cfg.model.size == 'tiny'


def test_rows_that_share_a_config_are_written_apart(data, tmp_path):
    """Their names do not depend on the selection, and other settings require another folder."""
    methods = plan(TABLES['terms-nmt-3'], *small('multi30k_en-de', data), ['*n_k = 1[39]'])
    write_configs(methods, tmp_path, [])
    write_configs(methods[:1], tmp_path, [])  # the names do not depend on the selection
    names = [f'attn0100-nk31 spatial_range-{n}-{2 * n - 1} dynconv31 kernel_size-{n}' for n in (19, 13)]
    found = [(path.name.split('_')[0], path.stem.split('-de_')[1]) for method in methods for path in method.paths]
    assert [' '.join(pair) for pair in found] == [' '.join(name.split()[i : i + 2]) for name in names for i in (0, 2)]
    for method in methods:
        attention = Config.fromfile(method.paths[0]).model.encoder_attention
        assert attention.get('spatial_range') or attention.kernel_size == int(method.name[-2:])
    methods = plan(TABLES['3.7'], *small('multi30k_en-de', data))  # windows of encoder and decoder
    write_configs(methods, tmp_path, [])
    assert len({path for method in methods for path in method.paths}) == len(methods) == 6
    protocol, source = small('multi30k_en-de', data)
    with pytest.raises(ProtocolError, match=rf'(?s)other settings.*{re.escape(methods[0].paths[0].name)}'):
        write_configs(plan(TABLES['3.7'], protocol._replace(iterations=3), source), tmp_path, [])


@pytest.mark.parametrize(
    'options',
    [
        [{'model.pretrained': 'weights/a/net.pth'}, {'model.pretrained': 'weights/b/net.pth'}],
        [{'model.decode_head.dropout_ratio': 0.2}, {'model.auxiliary_head.dropout_ratio': 0.2}],
    ],
    ids=['a path', 'two settings of one name'],
)
def test_variants_have_names_and_runs_of_their_own(data, tmp_path, options):
    row = next(row for row in TABLES['3.2'] if row.name == 'CC')
    rows = [row._replace(name=f'variant {n}', options=settings) for n, settings in enumerate(options)]
    methods = plan(rows, *small('camvid', data))
    write_configs(methods, tmp_path, [])
    write_configs(methods, tmp_path, [])  # as to resume
    paths = [path for method in methods for path in method.paths]
    assert len({path.stem for path in paths}) == 2
    assert all(path.parent == tmp_path for path in paths)
    for settings, path in zip(options, paths):
        cfg = Config.fromfile(path)
        assert all(reduce(getitem, key.split('.'), cfg) == value for key, value in settings.items())


@pytest.mark.parametrize('chooses', [True, False])
def test_a_test_setting_belongs_to_the_training_if_it_chooses_the_checkpoint(chooses):
    config = dict(
        model=dict(type='A', test_cfg=dict(mode='whole')),
        val_evaluator=dict(type='IoUMetric'),
        default_hooks=dict(checkpoint=dict(save_best='mIoU' if chooses else None)),
        test_dataloader=dict(batch_size=1),
    )
    first, second = Config(config), Config(config)
    second.test_dataloader.batch_size = 2
    assert _training(first) == _training(second)
    second.model.test_cfg.mode = 'slide'
    assert (_training(first) == _training(second)) is not chooses
