"""Configs, options of the command line, schedules and checkpoints as people write them."""

import json
import logging
from types import SimpleNamespace

import torch
from mmengine.config import Config
from mmengine.optim import OptimWrapper
from mmengine.registry import HOOKS, LOOPS, init_default_scope
from mmengine.runner import Runner

from mmattn.data_check.metrics import monitor_faults
from mmattn.data_check.schedules import check_schedules
from mmattn.engine import load_config
from mmattn.utils import config_path

from . import error, later, warning, works

CROP, BEST = 'train_dataloader.dataset.pipeline.4.crop_size', 'default_hooks.checkpoint.save_best'
SMALL = 'bi_cc/bi-cc_r18-d8-half_1xb8-160_camvid-180x180.py'
FCN = 'default_scope = "mmseg"\nmodel = dict(type="FCN", head=dict(channels=8))\ntrain_cfg = dict(max_iters=10)\n'


def written(folder, text, name='a.py', encoding='utf-8'):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(text.encode(encoding))
    return load_config(folder / name)


def shipped(**options):
    return load_config(config_path(SMALL), {key.replace('__', '.'): value for key, value in options.items()})


def child(folder, text):
    """A config over a shipped one."""
    return written(folder, f"_base_ = 'mmattn::{SMALL}'\n{text}")


config, inherited = later(written), later(child)


def two_bases(folder):
    written(folder, FCN, 'x.py')
    written(folder, FCN, 'y.py')
    return written(folder, "_base_ = ['x.py', 'y.py']")


def circle(folder):
    (folder / 'b.py').write_text("_base_ = 'c.py'")
    return written(folder, "_base_ = 'b.py'", 'c.py')


def read_absent(folder):
    written(folder, FCN, 'x.py')
    return written(folder, "_base_ = 'x.py'\nmodel = dict(a={{_base_.none}})")


def yaml(folder):
    return written(folder, 'train_cfg:\n  max_iters: 10\nmodel:\n  type: FCN\n', 'a.yaml').train_cfg.max_iters


def dumped(folder):
    """A dumped config is read again, without its bases."""
    shipped().dump(folder / 'b.py')
    return load_config(folder / 'b.py').model == shipped().model


def chain(folder):
    written(folder, FCN, 'base/one.py')
    written(folder, "_base_ = ['one.py']\nmodel = dict(head=dict(channels=16))\n", 'base/two.py')
    cfg = written(folder, "_base_ = './base/two.py'\nmodel = dict(head=dict(_delete_=True, type='X'))\n")
    return cfg.model.head


def read_from_base(folder):
    written(folder, 'width = 8\nmodel = dict(channels=width)\n', 'base.py')
    return written(folder, "_base_ = 'base.py'\ntrain_cfg = dict(max_iters={{_base_.width}})\n").train_cfg.max_iters


def pure_python(folder):
    (folder / 'base.py').write_text('from mmseg.models import EncoderDecoder\nmodel = dict(type=EncoderDecoder)\n')
    text = 'from mmengine.config import read_base\nwith read_base():\n    from .base import *\nmodel.update(a=1)\n'
    (folder / 'a.py').write_text(text)
    return load_config(folder / 'a.py').model.a


@later
def scheduled(_, train_cfg, *schedulers):
    runner = Runner.__new__(Runner)
    runner.logger = logging.getLogger('uses')
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
    runner.optim_wrapper = OptimWrapper(optimizer)
    loader = torch.utils.data.DataLoader(range(20))
    runner._train_dataloader = loader
    runner._train_loop = LOOPS.build(train_cfg, default_args=dict(runner=runner, dataloader=loader))
    runner._val_loop, runner._hooks = None, []
    runner.param_schedulers = runner.build_param_scheduler([dict(part) for part in schedulers])
    check_schedules(runner)
    return True


ITERS, EPOCHS = dict(type='IterBasedTrainLoop', max_iters=100), dict(type='EpochBasedTrainLoop', max_epochs=5)


def iters(kind, **options):
    return dict(type=kind, by_epoch=False, **options)


@later
def keys_hook(_, weights, own, **options):
    """Load weights into a layer, and say which keys do not fit."""
    hook = HOOKS.build(dict(type='mmattn.CheckpointKeysHook', **options))
    model = torch.nn.Sequential()
    for name, shape in own.items():
        model.register_parameter(name, torch.nn.Parameter(torch.zeros(shape)))
    runner = SimpleNamespace(model=model, _load_from='c.pth', _resume=False, work_dir='.')
    hook.after_load_checkpoint(runner, dict(state_dict={name: torch.zeros(shape) for name, shape in weights.items()}))
    return True


@later
def monitored(_, **hook):
    evaluator = dict(type='IoUMetric', iou_metrics=['mIoU', 'mFscore'], prefix=hook.pop('prefix', None))
    cfg = Config(dict(val_evaluator=evaluator, default_hooks=dict(checkpoint=dict(type='CheckpointHook', **hook))))
    init_default_scope('mmseg')
    return [where for where, _ in monitor_faults(cfg)]


USES = {
    'config file': [
        works('CRLF', lambda f: written(f, FCN.replace('\n', '\r\n')).train_cfg.max_iters, 10),
        error('a byte order mark', lambda f: written(f, FCN, encoding='utf-8-sig'), r'a\.py, line 1.*U\+FEFF'),
        works('YAML', yaml, 10),
        works('JSON', lambda f: written(f, json.dumps(dict(model=dict(type='X'))), 'a.json').model.type, 'X'),
        works(
            'spaces, umlauts and brackets in the path',
            lambda f: written(f, FCN, 'mein [Ordner] ü/a b.py').model.type,
            'FCN',
        ),
        works('dots in the name', lambda f: written(f, FCN, 'a.b-1.0.py').model.type, 'FCN'),
        error('empty', lambda f: load_config(f / ''), 'folder'),
        error(
            'a tab among spaces',
            config('model = dict(\n    a=1)\nif 1:\n\tb = 1\n        c = 2\n'),
            r'a\.py.*(Tab|Indentation)',
        ),
        error('a merge conflict', config('<<<<<<< HEAD\nmodel = 1\n=======\n'), r'a\.py, line 1.*SyntaxError'),
        error('Latin-1', config("# Maße\nmodel = dict(type='ß')\n", encoding='latin-1'), r'a\.py.*(utf|UTF|decode)'),
    ],
    'base configs': [
        works('a chain of three, with _delete_', chain, dict(type='X')),
        works('a variable of the base', read_from_base, 8),
        works('pure Python with read_base', pure_python, 1),
        works('dumped and read again', dumped),
        error('a shipped config that does not exist', config("_base_ = 'mmattn::bi_cc/none.py'"), r'none\.py'),
        error('a cycle', circle, r'(c|b)\.py.*(cycl|recurs|itself)'),
        error('two bases with one key', two_bases, 'model|duplicate|Duplicate'),
        error('a variable that the base lacks', read_absent, 'none'),
    ],
    'custom_imports': [
        error(
            'a missing module',
            config("custom_imports = dict(imports=['not_there'], allow_failed_imports=False)"),
            'not_there',
        )
    ],
    'helpers': [
        error(
            'data_root of the base',
            inherited("data_root = 'mine'\n"),
            r'data_root.*train_dataloader\.dataset\.data_root',
        ),
        error(
            'an optimizer of the base',
            inherited("optimizer = dict(type='SGD', lr=0.5)\n"),
            r'optimizer.*optim_wrapper\.optimizer',
        ),
        error('by an option', lambda f: shipped(data_root='mine'), r'data_root.*train_dataloader'),
        works(
            'a new name that is used',
            lambda f: (
                child(
                    f, "mine = 'mine'\ntrain_dataloader = dict(dataset=dict(data_root=mine))\n"
                ).train_dataloader.dataset.data_root
            ),
            'mine',
        ),
        works('a new name that is not used', lambda f: child(f, "note = 'tried on Monday'\n").note, 'tried on Monday'),
    ],
    'options': [
        works(
            'a number in scientific notation',
            lambda f: shipped(optim_wrapper__optimizer__lr=1e-3).optim_wrapper.optimizer.lr,
            1e-3,
        ),
        works('an element of a list of dicts', lambda f: shipped(param_scheduler__0__end=7).param_scheduler[0].end, 7),
        works('a part that is switched off', lambda f: shipped(val_dataloader=None).val_dataloader, None),
        error('no images in a batch', lambda f: shipped(train_dataloader__batch_size=0), 'batch_size.*0'),
        error('fewer than no workers', lambda f: shipped(train_dataloader__num_workers=-1), 'num_workers.*-1'),
        error('yes for a truth value', lambda f: shipped(env_cfg__cudnn_benchmark='yes'), "cudnn_benchmark.*'yes'"),
        error('a crop of three sides', lambda f: shipped(**{CROP: (8, 8, 8)}), r'crop_size.*8, 8, 8'),
        error('a crop of no pixels', lambda f: shipped(**{CROP: (0, 8)}), r'crop_size.*0, 8'),
        error('a misspelt part', lambda f: shipped(modle__type='X'), 'modle.*model'),
        warning('a misspelt setting', lambda f: shipped(train_cfg__max_iter=5), r'max_iter .*max_iters'),
    ],
    'workers': [
        works(
            'none, where the config keeps them',
            lambda f: shipped(train_dataloader__num_workers=0).train_dataloader.get('persistent_workers', False),
            False,
        ),
        works(
            'none, prefetching',
            lambda f: shipped(val_dataloader__num_workers=0, val_dataloader__prefetch_factor=4).val_dataloader.get(
                'prefetch_factor'
            ),
            None,
        ),
    ],
    'schedule': [
        error(
            'cosine to 0 before the end',
            scheduled(ITERS, iters('CosineAnnealingLR', T_max=60, end=60)),
            r'end.*60.*max_iters.*100',
        ),
        error('epochs under iterations', scheduled(ITERS, dict(type='MultiStepLR', milestones=[50])), 'by_epoch'),
        error(
            'OneCycleLR ends at 0 early',
            scheduled(ITERS, iters('OneCycleLR', eta_max=1, total_steps=50)),
            r'(total_steps|end).*50',
        ),
        warning(
            'OneCycleLR is cut off',
            scheduled(ITERS, iters('OneCycleLR', eta_max=1, total_steps=500)),
            r'total_steps.*500|end.*500',
        ),
        error(
            'exponential decay that begins after the end',
            scheduled(ITERS, iters('ExponentialLR', gamma=0.9, begin=200)),
            'begin=200',
        ),
        works('constant', scheduled(ITERS, iters('ConstantLR', factor=1))),
        works(
            'warm-up and steps',
            scheduled(EPOCHS, iters('LinearLR', start_factor=0.1, end=10), dict(type='StepLR', step_size=2)),
        ),
    ],
    'metrics of hooks': [
        works('a score by its class', monitored(save_best='mFscore'), []),
        works('a score that is not computed', monitored(save_best='mDice'), [BEST]),
        works('with a prefix', monitored(save_best='val/mIoU', prefix='val'), []),
        works('without its prefix', monitored(save_best='mIoU', prefix='val'), [BEST]),
    ],
    'checkpoint keys': [
        error('another width', keys_hook(dict(a=(3, 4)), dict(a=(3, 8))), 'a'),
        error('of a compiled model', keys_hook({'_orig_mod.a': (3,)}, dict(a=(3,))), '_orig_mod'),
        error('of another model', keys_hook(dict(b=(3,)), dict(a=(3,))), 'b'),
        works('all fit', keys_hook(dict(a=(3,)), dict(a=(3,)))),
    ],
}
