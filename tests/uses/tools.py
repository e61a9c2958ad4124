"""Commands as people type them: what is missing, misspelt or in the way. A tool runs in this process."""

import runpy
import sys
from pathlib import Path
from unittest import mock

import torch
from mmengine.config import Config

from . import error, later, works

ROOT = Path(__file__).parents[2]


@later
def command(_, line):
    """A successful end, also with exit code 0, returns None."""
    name, *words = line.split()
    script = ROOT / 'tools' / name
    with (
        mock.patch.object(sys, 'argv', [str(script), *words]),
        mock.patch.object(sys, 'path', [str(script.parent), *sys.path]),  # as Python does
    ):
        try:
            runpy.run_path(sys.argv[0], run_name='__main__')
        except SystemExit as stop:
            if stop.code:
                raise


@later
def with_files(folder, line, **files):
    """A command in a folder with checkpoints: name → tensors."""
    for name, tensors in files.items():
        if isinstance(tensors, dict):
            state = {key: torch.tensor(value) for key, value in tensors.items()}
            torch.save(dict(meta=dict(), state_dict=state), folder / f'{name}.pth')
        else:
            (folder / f'{name}.pth').write_text(tensors)
    command(line)(folder)
    made = sorted(path for path in folder.rglob('*.pth') if path.stem not in files)
    return [{key: v.tolist() for key, v in torch.load(path)['state_dict'].items()} for path in made]


def absent(line):
    return error(line.split()[0], command(line), 'absent')


@later
def demo(folder, options):
    """The demo on a picture that is not there, with an empty checkpoint."""
    torch.save(dict(state_dict={}), folder / 'x.pth')
    command(f'image_demo.py a.jpg {CONFIG} x.pth --out-dir out {options}')(folder)


@later
def exported(folder, **metadata):
    from mmattn.deployment.pt2 import load_pt2

    program = torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))
    torch.export.save(program, folder / 'm.pt2', extra_files=metadata)
    return load_pt2(folder / 'm.pt2')


def without_model(folder):
    Config(dict(train_cfg=dict(max_iters=1))).dump(folder / 'c.py')
    command('analysis_tools/get_flops.py c.py --shape 64 64')(folder)


def file_in_place(folder):
    (folder / 'w').write_text('')
    command(f'train.py {CONFIG} --work-dir w/x')(folder)


def empty_checkpoint(folder):
    (folder / 'c.pth').mkdir()
    command(f'train.py {CONFIG} --work-dir w --resume c.pth')(folder)


CHECKPOINT = dict(a=[1.0, 3.0])
CONFIG = ROOT / 'configs/bi_cc/bi-cc_r18-d8-half_1xb8-160_camvid-180x180.py'
AVERAGE = 'misc/average_checkpoints.py x.pth y.pth --out out.pth'

USES = {
    'help': [
        works(name, command(f'{name} --help'), None)
        for name in (
            *('train.py', 'test.py', 'image_demo.py', 'video_demo.py'),
            *('deployment/export.py', 'misc/publish_model.py'),
        )
    ],
    'no arguments': [
        error(name, command(name), r'SystemExit: 2.*usage|required')
        for name in (
            *('train.py', 'image_demo.py', 'translation_demo.py'),
            *('dataset_converters/helen.py', 'dataset_converters/vqa.py'),
        )
    ],
    'absent files': [
        absent('train.py absent.py'),
        absent(f'test.py {CONFIG} absent.pth'),
        absent(f'image_demo.py absent.jpg {CONFIG} absent.pth --out-dir out'),
        absent(f'translation_demo.py {CONFIG} absent.pth absent.en --out out.de'),
        absent(f'visualization/attention_maps.py {CONFIG} absent.pth absent.jpg --query 1,1'),
        absent(f'deployment/export.py {CONFIG} absent.pth --out m.onnx'),
        absent('misc/publish_model.py absent.pth out.pth'),
        absent('misc/average_checkpoints.py absent.pth --out out.pth'),
        absent(
            'dataset_converters/color_labels.py --images absent --masks absent --out-dir out --palette a:0,0,0 b:1,1,1'
        ),
        absent('dataset_converters/still_clips.py --images absent --masks absent --objects 1 --out-dir out'),
        absent('dataset_converters/region_npz.py absent.npz --out-dir out'),
        absent('dataset_converters/flickr8k.py absent --out-dir out'),
        absent('dataset_converters/multi30k.py absent --out-dir out'),
        absent('dataset_converters/coco_qa.py absent --out-dir out'),
        absent('dataset_converters/helen.py absent.zip'),
        absent('analysis_tools/get_flops.py absent.py'),
    ],
    'average of checkpoints': [
        works('two', with_files(AVERAGE, x=CHECKPOINT, y=dict(a=[3.0, 5.0])), [dict(a=[2.0, 4.0])]),
        error('of two models', with_files(AVERAGE, x=CHECKPOINT, y=dict(b=[3.0])), r'y\.pth'),
        error('of two widths', with_files(AVERAGE, x=CHECKPOINT, y=dict(a=[3.0])), r'y\.pth.*a'),
        error('one of them is text', with_files(AVERAGE, x=CHECKPOINT, y='not yet'), r'y\.pth'),
        error(
            'the output exists', with_files('misc/average_checkpoints.py x.pth --out x.pth', x=CHECKPOINT), r'x\.pth'
        ),
        error(
            'more than there are',
            with_files('misc/average_checkpoints.py . --last 3 --out out.pth', iter_1=CHECKPOINT),
            '3',
        ),
    ],
    'published model': [
        works(
            'one file with the hash in its name',
            with_files('misc/publish_model.py x.pth out.pth', x=CHECKPOINT),
            [CHECKPOINT],
        )
    ],
    'ensemble of checkpoints': [
        error(
            'of one',
            with_files('misc/ensemble_checkpoints.py x.pth --out out.pth', x=CHECKPOINT),
            'two|several|2|meta|config',
        )
    ],
    'exported model': [
        error('of another program', exported(), r'm\.pt2'),
        error('damaged metadata', exported(**{'metadata.json': '{'}), r'm\.pt2'),
    ],
    'FLOP counter': [
        error('a config without a model', without_model, 'model'),
        error('a shape of no pixels', command(f'analysis_tools/get_flops.py {CONFIG} --shape 0 64'), 'shape.*0'),
    ],
    'demo': [
        error(
            'a config without its checkpoint',
            command(f'image_demo.py a.jpg {CONFIG} x.pth {CONFIG} --out-dir out'),
            'CHECKPOINT',
        ),
        error('an opacity in percent', demo('--opacity 50'), 'opacity.*50|classes'),
        error('a device that is not here', demo('--device cuda:7'), 'cuda:7'),
        error('a misspelt device', demo('--device gpu'), 'gpu'),
    ],
    'work dir': [error('a file in its place', file_in_place, r'w/x|\bw\b')],
    'launcher': [
        error('that nothing started', command(f'train.py {CONFIG} --launcher pytorch --work-dir w'), 'dist_train')
    ],
    'resuming': [error('from a folder that is empty', empty_checkpoint, r'c\.pth')],
    'reproduction': [
        error('an unknown table', command('reproduce.py 9.9'), r'9\.9'),
        error('no seeds', command('reproduce.py 3.2 --seeds'), 'seeds'),
    ],
}
