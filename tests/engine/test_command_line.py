"""What train.py and test.py, and the other tools, say to wrong configs, options, checkpoints, folders and signals."""

import gc
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from torch import distributed

from mmattn.engine import command_line, load_config
from mmattn.engine.command_line import data_paths, hold_work_dir
from mmattn.utils.files import hold
from mmattn.utils.launch import launch

from ..forked_tools import tool
from ..requirements import requires
from .test_tools import CONFIG, ROOT, SMALL, free_port


def fails(done, code=1):
    """The error of a tool, which must be one message."""
    assert done.returncode == code, done.stdout
    assert 'Traceback' not in done.stderr
    return done.stderr


def test_a_run_that_is_refused_writes_nothing(attempt, tmp_path):
    """Another run holds the work dir."""
    with hold(tmp_path):
        error = fails(attempt(*tool('train.py', CONFIG, '--work-dir', tmp_path, '--cfg-options', 'randomness.seed=7')))
    assert str(tmp_path) in error
    assert [path.name for path in tmp_path.iterdir()] == ['.lock']


@pytest.mark.parametrize(
    ('launcher', 'rank', 'holds'), [('none', '1', True), ('pytorch', '0', True), ('pytorch', '1', False)]
)
def test_the_first_process_holds_the_work_dir(tmp_path, monkeypatch, launcher, rank, holds):
    monkeypatch.setenv('RANK', rank)
    file = hold_work_dir(Config(dict(work_dir=str(tmp_path / 'new'), launcher=launcher)))
    assert (file is not None) == (tmp_path / 'new').exists() == holds
    if file is not None:
        file.close()


# --- configs


FILES = {  # name: text, and what the error names, if it is one
    'none.py': (None, r'none\.py'),
    '': (None, 'folder'),
    'notes.txt': ('a = 1', r'notes\.txt'),
    'name.py': ('a = 1\nb = c\n', r'/name\.py, line 2: NameError'),
    'child.py': ("_base_ = './broken.py'\n", r'broken\.py, line 3: SyntaxError'),
    'a.json': ('{"a": 1,\n b}', r'/a\.json, line 2: JSONDecodeError'),
    'mark.py': ('\ufeffa = 1\n', r'mark\.py.*U\+FEFF'),
    'tabs.py': ('if 1:\n\ta = 1\n        b = 2\n', r'tabs\.py.*(Tab|Indentation)'),
    'latin-1.py': ("a = 'ß'\n".encode('latin-1'), r'latin-1\.py.*(utf|UTF|decode)'),
    'imports.py': ("custom_imports = dict(imports=['not_there'], allow_failed_imports=False)", 'not_there'),
    'own.py': ("custom_imports = dict(imports=['wrong_syntax'])", r'wrong_syntax\.py, line 2: SyntaxError'),
    'shipped.py': ("_base_ = 'mmattn::bi_cc/none.py'", r'none\.py'),
    'cycle.py': ("_base_ = './cycle.py'", r'cycle\.py.*(cycl|recurs|itself)'),
    'twice.py': ("_base_ = ['./helpers.py', './stem.py']", '[Dd]uplicate'),
    'lacking.py': ("_base_ = './helpers.py'\nmodel = dict(a={{_base_.none}})\n", 'none'),
}
OPTIONS = [  # of a shipped config, and what the error names
    ({'train_dataloader.dataset.pipeline.9.size': 1}, 'Index 9'),
    ({'optim_wrapper.optimizer.lr.base': 1}, 'lr'),
    ({'modle.type': 'X'}, 'modle.*model'),
    ({'tta_model': dict(type='X'), 'train_cfg.max_iters': 1}, None),
]


@pytest.mark.parametrize(
    ('name', 'text', 'options', 'names'),
    [
        *((name, text, {}, names) for name, (text, names) in FILES.items()),
        *((CONFIG, None, options, names) for options, names in OPTIONS),
    ],
)
def test_configs_and_options_that_do_not_fit(tmp_path, monkeypatch, name, text, options, names):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / 'wrong_syntax.py').write_text('a = 1\nb = (\n', encoding='utf-8')
    (tmp_path / 'broken.py').write_text('a = 1\n\nb = (\n', encoding='utf-8')
    for helper in ('helpers.py', 'stem.py'):
        (tmp_path / helper).write_text("model = dict(type='X')", encoding='utf-8')
    if text is not None:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with nullcontext() if names is None else pytest.raises((ValueError, OSError), match=names) as caught:
        load_config(tmp_path / name, options)
    if caught is not None and isinstance(caught.value, OSError):
        assert caught.value.filename == str(tmp_path / name)


FCN = "default_scope = 'mmseg'\nmodel = dict(type='FCN')\n"
LAZY = 'from mmengine.config import read_base\nwith read_base():\n    from .base import *\n'


@pytest.mark.parametrize(
    ('name', 'text'),
    [
        ('a.py', FCN.replace('\n', '\r\n')),
        ('a.yaml', 'model:\n  type: FCN\n'),
        ('a.json', '{"model": {"type": "FCN"}}'),
        ('a.b-1.0.py', FCN),
        ('mein [Ordner] ü/a b.py', FCN),
        ('lazy.py', f'{LAZY}model.update(a=1)\n'),
    ],
)
def test_forms_of_a_config(tmp_path, name, text):
    (tmp_path / 'base.py').write_text(FCN, encoding='utf-8')
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(text.encode())
    assert load_config(tmp_path / name).model.type == 'FCN'


SST = ROOT / 'configs/sst/sst-grid_r18-d8-half_1xb4-400_davis-240p.py'
# What a tool is told, its exit code, and what the error names. {trained} is a checkpoint, {cut} lacks its end, {other}
# a weight. {data} and {davis} are copies, {link} leads to one's images, and a.png has two other names. Nobody can write
# to /proc/self.
ERRORS = [
    ('train.py {config} --launcher slurm', 1, 'slurm_train'),
    ('train.py {config} --launcher mpi', 1, 'mpirun'),
    ('train.py {config} --launcher pytorch', 1, 'dist_train'),
    ('train.py {config} --work-dir {config}/x', 1, CONFIG.name),
    ('train.py {config} --cfg-options model', 2, '--cfg-options .*model'),
    ('train.py {config} --cfg-options param_scheduler=[dict(type="X",warmup=60)]', 2, '--cfg-options .*scheduler'),
    ('train.py {config} --amp --cfg-options optim_wrapper.type=ApexOptimWrapper', 1, r'optim_wrapper\.type'),
    ('train.py {config} --auto-scale-lr --cfg-options auto_scale_lr=None', 1, r'auto_scale_lr\.base_batch_size'),
    ('train.py {config} --resume {cut}', 1, r'cut\.pth'),
    ('train.py {config} --cfg-options load_from={cut}', 1, r'cut\.pth'),
    ('train.py {config} --work-dir /proc/self/x', 1, '/proc/self'),
    ('test.py {config} {cut}', 1, r'cut\.pth'),
    ('test.py {config} x.pth --show-dir x --cfg-options default_hooks.visualization=None', 1, r'hooks\.visualization'),
    ('test.py {config} x.pth --tta --cfg-options tta_model=None', 1, 'tta_model'),
    ('test.py {config} x.pth --show', 1, '--show-dir'),
    ('test.py {config} {trained} --work-dir . --out /proc/self/x', 1, '/proc/self'),
    ('test.py {config} {trained} --out {data}/ann_dir/val', 1, '{data}'),
    ('test.py {config} {trained} --out {data}/img_dir/train', 1, '{data}'),  # of the training
    ('test.py {config} {trained} --show-dir {link}/val', 1, '{data}'),
    ('test.py {config} {trained} --cfg-options test_evaluator.output_dir={data}/ann_dir/val', 1, '{data}'),
    # The data set knows its masks, not the config: the run has begun.
    ('test.py {sst} {trained} --work-dir {elsewhere} --out {davis}/Annotations/240p', 1, '{davis}'),
    ('translation_demo.py {config} absent.pth absent.en --out out.de', 1, 'absent'),
    ('analysis_tools/browse_dataset.py {config}', 1, '--output-dir'),
    ('analysis_tools/browse_dataset.py {config} --not-show', 2, '--output-dir'),
    ('analysis_tools/browse_dataset.py {config} --number -1', 2, '--number .* -1'),
    ('analysis_tools/browse_dataset.py {config} --output-dir /proc/self/x', 1, '/proc/self'),
    ('analysis_tools/browse_dataset.py {config} --not-show --output-dir {data}/img_dir/train/new', 1, '{data}'),
    ('analysis_tools/get_flops.py {root}/configs/sst', 1, r'sst/metafile\.yml'),
    ('analysis_tools/get_flops.py {root}/configs/_base_/schedules/adamw_160.py --shape 64', 1, 'model'),
    ('analysis_tools/get_flops.py {config} --shape 0 64', 2, 'shape.*0'),
    ('analysis_tools/majority_baseline.py {config} --result x.json', 2, '--result'),
    ('analysis_tools/majority_baseline.py {config} --result x={config}', 1, f'--result.* {CONFIG}'),
    ('analysis_tools/majority_baseline.py {config} --out /proc/self/x.md', 1, '/proc/self'),
    ('analysis_tools/majority_baseline.py {config} --result x=a.png --out hard.png', 1, r'a\.png'),
    ('deployment/export.py {config} absent.pth --out m.onnx', 1, r'absent\.pth'),
    ('misc/publish_model.py absent.pth out.pth', 1, r'absent\.pth'),
    ('misc/publish_model.py {trained} /proc/self/x.pth', 1, '/proc/self'),
    ('visualization/attention_maps.py {config} absent.pth absent.jpg --query 1,1', 1, 'absent'),
    ('visualization/attention_maps.py {config} x.pth a.png --query 1,1 --out a.png', 1, r'a\.png'),
    ('visualization/attention_maps.py {config} x.pth x.png --query 1,1 --threshold 2', 1, r'--threshold .* 2\.0'),
    ('visualization/attention_maps.py {config} {trained} {image} --query 1,1 --out q.xyz', 1, r'q\.xyz'),
    (
        'visualization/attention_maps.py {config} {trained} {image} --query 1,1 --out q.png --device cuda:99',
        1,
        'cuda:99',
    ),
    ('visualization/attention_maps.py {config} {other} {image} --query 1,1 --out q.png', 1, r'decode_head\.conv_seg'),
    ('visualization/attention_maps.py {config} {trained} i.png --query 1,1 --out /proc/self/x.png', 1, '/proc/self'),
    ('visualization/attention_explorer.py {config} x.pth a.png --out soft.png', 1, r'a\.png'),
    ('visualization/attention_explorer.py {config} {trained} i.png --out /proc/self/x.html', 1, '/proc/self'),
]
REQUIRED = {'deployment/export.py': requires('onnx', 'onnxscript')}


def marks(command):
    """By default what is refused by the options; by the files, end to end."""
    own = [REQUIRED[name] for name in command.split()[:1] if name in REQUIRED]
    return [*own, pytest.mark.e2e] if re.search('trained|cut|other|/proc|{data}', command) else own


@pytest.fixture
def files(request, tiny_data, tmp_path, monkeypatch):
    """The files that an error is about; of a training and of data those that the case needs."""
    monkeypatch.chdir(tmp_path)  # where work dirs would be
    command, names = request.getfixturevalue('command'), dict(data='BUILDINGS_ROOT', davis='DAVIS_240P_ROOT')
    files = dict(config=CONFIG, sst=SST, root=ROOT, image=f'{tiny_data["BUILDINGS_ROOT"]}/img_dir/val/tile_0.png')
    files.update({name: tmp_path / name for name in (*names, 'link')}, env={}, elsewhere=f'{tmp_path}-elsewhere')
    files.update({name: tmp_path / f'{name}.pth' for name in ('cut', 'other')})
    Path('a.png').write_bytes(b'content')
    os.symlink('a.png', 'soft.png')
    os.link('a.png', 'hard.png')
    for name, variable in names.items():
        if f'{{{name}}}' in command or (name == 'data' and '{link}' in command):
            shutil.copytree(tiny_data[variable], files[name])
            files['env'][variable] = str(files[name])
    files['link'].symlink_to(files['data'] / 'img_dir')
    if re.search('{(trained|cut|other)}', command):
        files['trained'] = request.getfixturevalue('trained')[0] / 'iter_2.pth'
        files['cut'].write_bytes(files['trained'].read_bytes()[:-100])
        checkpoint = torch.load(files['trained'], weights_only=False)
        del checkpoint['state_dict']['decode_head.conv_seg.weight']
        torch.save(checkpoint, files['other'])
    return files


def contents(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob('*')}


@pytest.mark.parametrize(
    ('command', 'code', 'names'), [pytest.param(*row, marks=marks(row[0]), id=row[0]) for row in ERRORS]
)
def test_a_tool_ends_with_one_message_and_writes_nothing(attempt, files, tmp_path, command, code, names):
    before = contents(tmp_path)
    small = ['--cfg-options', *SMALL] if '{image}' in command else []
    words = [word.format(**files) for word in command.split()]
    done = attempt(*tool(*words), *small, MPLBACKEND='agg', **files['env'])
    assert re.search(names.format(**files), fails(done, code)), done.stderr
    assert contents(tmp_path) == before


@pytest.mark.parametrize('count', ['two', '0', '-1', '1.5'])
def test_a_number_of_processes_that_is_none(capsys, count):
    assert launch([f'--nproc_per_node={count}', 'train.py']) == 2
    assert re.search(rf'GPUS.* {count}\n', capsys.readouterr().err)


@pytest.mark.slow
def test_a_port_in_use(attempt):
    with socket.socket() as taken:
        taken.bind(('', 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert port in fails(attempt(*tool('dist_train.sh', CONFIG, 1), PORT=port))


def test_options_of_workers_go_with_the_workers():
    """torch refuses them without workers."""
    options = {'train_dataloader.num_workers': 0, 'val_dataloader': dict(num_workers=0, prefetch_factor=4)}
    cfg = load_config(CONFIG, {**options, 'model': dict(_delete_=True, type='X')})
    assert 'persistent_workers' not in cfg.train_dataloader
    assert 'prefetch_factor' not in cfg.val_dataloader
    assert cfg.model == dict(type='X')


def arguments(tmp_path, **settings):
    (tmp_path / 'a.py').write_text(''.join(f'{key} = {value!r}\n' for key, value in settings.items()), encoding='utf-8')
    return Namespace(
        config=str(tmp_path / 'a.py'), cfg_options=None, local_rank=0, launcher='none', work_dir=str(tmp_path / 'work')
    )


def test_a_child_has_a_work_dir_of_its_own(tmp_path, monkeypatch):
    """Of a config.py, which converters write, it is named after the folder."""
    monkeypatch.setenv('LOCAL_RANK', '0')
    monkeypatch.chdir(tmp_path)
    data = tmp_path / 'data/mine'
    data.mkdir(parents=True)
    (data / 'config.py').write_text('a = 1\n')
    (tmp_path / 'child.py').write_text("_base_ = 'data/mine/config.py'\n")
    for config, name in (('data/mine/config.py', 'mine'), ('child.py', 'child')):
        found = command_line.config_from(Namespace(**vars(arguments(tmp_path)) | dict(config=config, work_dir=None)))
        assert found.work_dir == f'work_dirs/{name}'
    monkeypatch.chdir(data)
    found = command_line.config_from(Namespace(**vars(arguments(tmp_path)) | dict(config='config.py', work_dir=None)))
    assert found.work_dir == 'work_dirs/mine'


@pytest.mark.parametrize('key', ['output_dir', 'outfile_prefix'])
@pytest.mark.parametrize('name', ['val_evaluator', 'test_evaluator'])
@pytest.mark.parametrize('listed', [True, False])
def test_a_metric_does_not_write_to_the_data(tmp_path, monkeypatch, key, name, listed):
    monkeypatch.setenv('LOCAL_RANK', '0')
    (tmp_path / 'data').mkdir()
    loader = dict(dataset=dict(type='X', data_root=str(tmp_path), data_prefix=dict(img_path='data')))
    for place, faulty in (('data/new', True), ('results', False)):
        metric = dict(type='Y', **{key: str(tmp_path / place)})
        settings = {'test_dataloader': loader, name: [dict(type='Z'), metric] if listed else metric}
        with pytest.raises(ValueError, match=rf'{name}\.{key}.*data/new') if faulty else nullcontext():
            command_line.config_from(arguments(tmp_path, **settings))


def test_a_process_waits_for_the_others_before_it_leaves_them(monkeypatch):
    """And frees what uses the threads of the process group. A process alone leaves nothing."""
    done = []

    def record(module, name):
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args: done.append((name, *args)) or original(*args))

    record(distributed, 'barrier')
    record(distributed, 'destroy_process_group')
    monkeypatch.setattr(command_line.atexit, 'register', lambda function: done.append(('at exit', function)))
    command_line.leave_process_group()
    assert done == []
    distributed.init_process_group('gloo', store=distributed.HashStore(), rank=0, world_size=1)
    command_line.leave_process_group()
    assert done == [('barrier',), ('destroy_process_group',), ('at exit', gc.collect)]
    assert not distributed.is_initialized()


@pytest.mark.parametrize(
    ('value', 'parsed'),
    [
        ('0110', 110),
        ("'0110'", '0110'),
        ('"0110"', '0110'),
        ('"[1,2]"', [1, 2]),
        ('[1, 2]', [1, 2]),
        ('my results', 'my results'),
        ("'1, 2'", '1, 2'),
        ("'a','b'", ['a', 'b']),
        ('[traffic light, traffic sign]', ['traffic light', 'traffic sign']),
        ('[(a b, True), (c, None)]', [('a b', True), ('c', None)]),
    ],
)
def test_spaces_and_quoted_text_are_kept(value, parsed):
    parser = ArgumentParser()
    command_line.add_config_options(parser)
    assert parser.parse_args(['--cfg-options', f'model.terms={value}']).cfg_options == {'model.terms': parsed}


# --- errors of a run


def test_an_error_of_the_config_names_the_component_and_the_log_has_the_traceback(attempt, tmp_path):
    command = tool('train.py', CONFIG, '--work-dir', tmp_path, '--cfg-options', *SMALL, 'model.decode_head.chanels=3')
    said = fails(attempt(*command))
    assert re.search("BiCCHead.*'chanels'", said)
    (log,) = tmp_path.glob('*/*.log')
    assert str(log) in said
    assert 'Traceback (most recent call last)' in log.read_text('utf-8')


@pytest.mark.e2e
def test_of_two_processes_one_says_what_is_wrong(attempt, tmp_path):
    for config, option, said in (
        (tmp_path / 'none.py', '', 'none.py'),
        (CONFIG, 'model.decode_head.type=mmattn.BiCCHed', 'mmattn.BiCCHed is not in the'),
    ):
        options = ['--work-dir', tmp_path, '--cfg-options', *SMALL, *option.split()]
        done = attempt(*tool('dist_train.sh', config, 2, *options), PORT=free_port(), CUDA_VISIBLE_DEVICES='')
        assert fails(done).count(said) == 1


@pytest.mark.e2e
@pytest.mark.parametrize('processes', [1, 2])
def test_ctrl_c_says_how_to_resume(tiny_data, tmp_path, processes):
    command = tool('train.py', CONFIG) if processes == 1 else tool('dist_train.sh', CONFIG, 2)
    lengths = 'train_cfg.max_iters', 'train_cfg.val_interval', 'param_scheduler.0.end'
    options = '--work-dir', tmp_path, '--cfg-options', *SMALL, *(f'{length}=100000' for length in lengths)
    path = f'{Path(sys.executable).parent}:{os.environ["PATH"]}'
    environment = {**os.environ, **tiny_data, 'CUDA_VISIBLE_DEVICES': '', 'PATH': path, 'PORT': free_port()}
    with (
        open(tmp_path / 'said', 'w', encoding='utf-8') as errors,
        subprocess.Popen(
            [str(word) for word in (*command, *options)],
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # ignored where tests run under nohup
        ) as process,
    ):
        for line in process.stdout:
            if re.search(r'Iter\(train\) \[ *5/', line):
                os.killpg(process.pid, signal.SIGINT)  # as a terminal does
                break
        process.communicate(timeout=120)
    said = (tmp_path / 'said').read_text('utf-8')
    assert process.returncode == 130, said
    assert said.count('Interrupted') == 1
    assert re.search(f'train.py: Interrupted. .*--resume .*{tmp_path}', said)
    assert 'Traceback' not in said


def test_a_text_in_a_config_may_be_longer_than_a_file_name(tmp_path):
    (tmp_path / 'list.txt').touch()
    dataset = dict(data_root=str(tmp_path), ann_file='list.txt', prompt='a' * 300)
    assert data_paths(Config(dict(test_dataloader=dict(dataset=dataset)))) == [tmp_path / 'list.txt']
