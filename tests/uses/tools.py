"""Commands as people type them: what is missing, misspelt or in the way. A tool runs in this process."""

import runpy
import sys
from pathlib import Path
from unittest import mock

import torch
from mmengine.config import Config

from . import error, works

ROOT = Path(__file__).parents[2]


def run(name, *words):
    """Run a tool. A successful end, also with exit code 0, returns None."""
    script = ROOT / 'tools' / name
    with (
        mock.patch.object(sys, 'argv', [str(script), *map(str, words)]),
        mock.patch.object(sys, 'path', [str(script.parent), *sys.path]),  # as Python does
    ):
        try:
            runpy.run_path(sys.argv[0], run_name='__main__')
        except SystemExit as stop:
            if stop.code:
                raise


def command(line):
    name, *words = line.split()
    return lambda _: run(name, *words)


def with_files(line, **files):
    """A command in a folder with checkpoints: name → tensors."""

    def do(folder):
        for name, tensors in files.items():
            if isinstance(tensors, dict):
                state = {key: torch.tensor(value) for key, value in tensors.items()}
                torch.save(dict(meta=dict(), state_dict=state), folder / f'{name}.pth')
            else:
                (folder / f'{name}.pth').write_text(tensors)
        command(line)(folder)
        made = sorted(path for path in folder.rglob('*.pth') if path.stem not in files)
        return [{key: v.tolist() for key, v in torch.load(path)['state_dict'].items()} for path in made]

    return do


def helped(name):
    return works('help', name, lambda _: run(name, '--help') or True)


def without(name):
    return error('no arguments', name, command(name), r'SystemExit: 2.*usage|required')


def absent(line, pattern='absent'):
    return error('absent files', line.split()[0], command(line), pattern)


def exported(metadata=None):
    def do(folder):
        from mmattn.deployment.pt2 import load_pt2

        program = torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))
        torch.export.save(
            program, folder / 'm.pt2', extra_files={} if metadata is None else {'metadata.json': metadata}
        )
        return load_pt2(folder / 'm.pt2')

    return do


def flops(cfg):
    def do(folder):
        Config(cfg).dump(folder / 'c.py')
        run('analysis_tools/get_flops.py', 'c.py', '--shape', '64', '64')

    return do


CHECKPOINT = dict(a=[1.0, 3.0])
SHIPPED = 'configs/bi_cc/bi-cc_r18-d8-half_1xb8-160_camvid-180x180.py'
CONFIG = ROOT / SHIPPED

USES = [
    *map(
        helped,
        ['train.py', 'test.py', 'image_demo.py', 'video_demo.py', 'deployment/export.py', 'misc/publish_model.py'],
    ),
    *map(
        without,
        [
            'train.py',
            'image_demo.py',
            'translation_demo.py',
            'dataset_converters/helen.py',
            'dataset_converters/vqa.py',
        ],
    ),
    absent('train.py absent.py'),
    absent(f'test.py {CONFIG} absent.pth'),
    absent(f'image_demo.py absent.jpg {CONFIG} absent.pth --out-dir out'),
    absent(f'translation_demo.py {CONFIG} absent.pth absent.en --out out.de'),
    absent(f'visualization/attention_maps.py {CONFIG} absent.pth absent.jpg --query 1,1'),
    absent(f'deployment/export.py {CONFIG} absent.pth --out m.onnx'),
    absent('misc/publish_model.py absent.pth out.pth'),
    absent('misc/average_checkpoints.py absent.pth --out out.pth'),
    absent('dataset_converters/color_labels.py --images absent --masks absent --out-dir out --palette a:0,0,0 b:1,1,1'),
    absent('dataset_converters/still_clips.py --images absent --masks absent --objects 1 --out-dir out'),
    absent('dataset_converters/region_npz.py absent.npz --out-dir out'),
    absent('dataset_converters/flickr8k.py absent --out-dir out'),
    absent('dataset_converters/multi30k.py absent --out-dir out'),
    absent('dataset_converters/coco_qa.py absent --out-dir out'),
    absent('dataset_converters/helen.py absent.zip'),
    absent('analysis_tools/get_flops.py absent.py'),
    works(
        'average of checkpoints',
        'two',
        with_files('misc/average_checkpoints.py x.pth y.pth --out out.pth', x=CHECKPOINT, y=dict(a=[3.0, 5.0])),
        [dict(a=[2.0, 4.0])],
    ),
    error(
        'average of checkpoints',
        'of two models',
        with_files('misc/average_checkpoints.py x.pth y.pth --out out.pth', x=CHECKPOINT, y=dict(b=[3.0])),
        r'y\.pth',
    ),
    error(
        'average of checkpoints',
        'of two widths',
        with_files('misc/average_checkpoints.py x.pth y.pth --out out.pth', x=CHECKPOINT, y=dict(a=[3.0])),
        r'y\.pth.*a',
    ),
    error(
        'average of checkpoints',
        'one of them is text',
        with_files('misc/average_checkpoints.py x.pth y.pth --out out.pth', x=CHECKPOINT, y='not yet'),
        r'y\.pth',
    ),
    error(
        'average of checkpoints',
        'the output exists',
        with_files('misc/average_checkpoints.py x.pth --out x.pth', x=CHECKPOINT),
        r'x\.pth',
    ),
    error(
        'average of checkpoints',
        'more than there are',
        with_files('misc/average_checkpoints.py . --last 3 --out out.pth', iter_1=CHECKPOINT),
        '3',
    ),
    works(
        'published model',
        'one file with the hash in its name',
        with_files('misc/publish_model.py x.pth out.pth', x=CHECKPOINT),
        [CHECKPOINT],
    ),
    error(
        'ensemble of checkpoints',
        'of one',
        with_files('misc/ensemble_checkpoints.py x.pth --out out.pth', x=CHECKPOINT),
        'two|several|2|meta|config',
    ),
    error('exported model', 'of another program', exported(), r'm\.pt2'),
    error('exported model', 'damaged metadata', exported('{'), r'm\.pt2'),
    error('FLOP counter', 'a config without a model', flops(dict(train_cfg=dict(max_iters=1))), 'model'),
    error(
        'FLOP counter',
        'a shape of no pixels',
        command(f'analysis_tools/get_flops.py {CONFIG} --shape 0 64'),
        'shape.*0',
    ),
    error(
        'demo',
        'a config without its checkpoint',
        command(f'image_demo.py a.jpg {CONFIG} x.pth {CONFIG} --out-dir out'),
        'CHECKPOINT',
    ),
    error(
        'demo',
        'an opacity in percent',
        lambda f: (
            torch.save({}, f / 'x.pth'),
            run('image_demo.py', 'a.jpg', CONFIG, 'x.pth', '--out-dir', 'out', '--opacity', '50'),
        ),
        'opacity.*50|classes',
    ),
    *(
        error(
            'demo',
            what,
            lambda f, device=device: (
                torch.save(dict(state_dict={}), f / 'x.pth'),
                run('image_demo.py', 'a.jpg', CONFIG, 'x.pth', '--out-dir', 'out', '--device', device),
            ),
            device,
        )
        for what, device in (('a device that is not here', 'cuda:7'), ('a misspelt device', 'gpu'))
    ),
    error(
        'work dir',
        'a file in its place',
        lambda f: ((f / 'w').write_text(''), run('train.py', CONFIG, '--work-dir', 'w/x')),
        r'w/x|\bw\b',
    ),
    error(
        'launcher', 'that nothing started', command(f'train.py {CONFIG} --launcher pytorch --work-dir w'), 'dist_train'
    ),
    error(
        'resuming',
        'from a folder that is empty',
        lambda f: ((f / 'c.pth').mkdir(), run('train.py', CONFIG, '--work-dir', 'w', '--resume', 'c.pth')),
        r'c\.pth',
    ),
    error('reproduction', 'an unknown table', command('reproduce.py 9.9'), r'9\.9'),
    error('reproduction', 'no seeds', command('reproduce.py 3.2 --seeds'), 'seeds'),
]
