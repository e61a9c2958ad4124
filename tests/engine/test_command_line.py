"""What train.py and test.py, and the other tools, say to wrong configs, options, checkpoints, folders and signals."""

import gc
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
import zipfile
from argparse import ArgumentParser, Namespace
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from PIL import Image
from torch import distributed

from mmattn.engine import check_checkpoint, command_line, load_config
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
    'mark.py': ('\ufeffa = 1\n', r'mark\.py, line 1.*U\+FEFF'),
    'tabs.py': ('if 1:\n\ta = 1\n        b = 2\n', r'tabs\.py.*(Tab|Indentation)'),
    'latin-1.py': ("a = 'ß'\n".encode('latin-1'), r'latin-1\.py.*(utf|UTF|decode)'),
    'imports.py': ("custom_imports = dict(imports=['not_there'], allow_failed_imports=False)", 'not_there'),
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
def test_configs_and_options_that_do_not_fit(tmp_path, name, text, options, names):
    (tmp_path / 'broken.py').write_text('a = 1\n\nb = (\n', encoding='utf-8')
    for helper in ('helpers.py', 'stem.py'):
        (tmp_path / helper).write_text("model = dict(type='X')", encoding='utf-8')
    if text is not None:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with nullcontext() if names is None else pytest.raises((ValueError, OSError), match=names):
        load_config(tmp_path / name, options)


def test_a_config_is_a_file(tmp_path):
    """The errors name what is not."""
    (tmp_path / 'folder.py').mkdir()
    for name, error in (('none.py', FileNotFoundError), ('folder.py', IsADirectoryError)):
        with pytest.raises(error) as caught:
            load_config(tmp_path / name)
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


@pytest.mark.parametrize(
    ('arguments', 'code', 'names'),
    [
        (['train.py', CONFIG, '--launcher', 'slurm'], 1, 'slurm_train'),
        (['train.py', CONFIG, '--launcher', 'mpi'], 1, 'mpirun'),
        (['train.py', CONFIG, '--launcher', 'pytorch'], 1, 'dist_train'),
        (['train.py', CONFIG, '--work-dir', f'{CONFIG}/x'], 1, f'{CONFIG}'),
        (['train.py', CONFIG, '--cfg-options', 'model'], 2, '--cfg-options .*model'),
        (
            ['train.py', CONFIG, '--cfg-options', 'param_scheduler=[dict(type="X",warmup=60)]'],
            2,
            '--cfg-options .*scheduler',
        ),
        (['analysis_tools/get_flops.py', ROOT / 'configs/sst'], 1, r'sst/metafile\.yml'),
        (['analysis_tools/get_flops.py', ROOT / 'configs/_base_/schedules/adamw_160.py', '--shape', 64], 1, 'model'),
        (['analysis_tools/get_flops.py', CONFIG, '--shape', 0, 64], 2, 'shape.*0'),
        pytest.param(
            ['deployment/export.py', CONFIG, 'absent.pth', '--out', 'm.onnx'],
            1,
            r'absent\.pth',
            marks=requires('onnx', 'onnxscript'),
        ),
        (['misc/publish_model.py', 'absent.pth', 'out.pth'], 1, r'absent\.pth'),
        (['translation_demo.py', CONFIG, 'absent.pth', 'absent.en', '--out', 'out.de'], 1, 'absent'),
        (['visualization/attention_maps.py', CONFIG, 'absent.pth', 'absent.jpg', '--query', '1,1'], 1, 'absent'),
    ],
)
def test_wrong_arguments(attempt, tmp_path, monkeypatch, arguments, code, names):
    monkeypatch.chdir(tmp_path)  # where work dirs would be
    assert re.search(names, fails(attempt(*tool(*arguments)), code))


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
    ('value', 'parsed'), [('0110', 110), ("'0110'", '0110'), ('"0110"', '0110'), ('"[1,2]"', [1, 2])]
)
def test_digits_in_quotes_are_text(value, parsed):
    parser = ArgumentParser()
    command_line.add_config_options(parser)
    assert parser.parse_args(['--cfg-options', f'model.terms={value}']).cfg_options == {'model.terms': parsed}


# --- checkpoints


def checkpoints(folder):
    """Write files that are no checkpoints; return their paths."""
    torch.save(dict(state_dict={}), folder / 'whole.pth')
    (folder / 'empty.pth').touch()
    (folder / 'text.pth').write_text('not yet trained', encoding='utf-8')
    (folder / 'cut.pth').write_bytes((folder / 'whole.pth').read_bytes()[:-100])
    with zipfile.ZipFile(folder / 'zip.pth', 'w') as archive:
        archive.writestr('notes.txt', 'x')
    contents = dict(none=None, list=[1], weights=dict(state_dict=[1]))
    for name, content in contents.items():
        torch.save(content, folder / f'{name}.pth')
    torch.jit.script(torch.nn.Linear(1, 1)).save(folder / 'program.pth')
    torch.save(dict(state_dict={}), folder / 'protocol.pth', pickle_protocol=4)
    with tarfile.open(folder / 'tar.pth', 'w') as archive:  # as torch wrote it before version 0.1.9
        for name in ('sys_info', 'pickle', 'storages', 'tensors'):
            archive.addfile(tarfile.TarInfo(name))
    return [folder / f'{name}.pth' for name in ('empty', 'text', 'cut', 'zip', *contents, 'program', 'protocol', 'tar')]


@pytest.mark.filterwarnings('ignore')  # of TorchScript
def test_what_is_not_a_checkpoint(tmp_path):
    """None of these holds an object, so nobody is told to trust it."""
    for path in checkpoints(tmp_path):
        with pytest.raises(ValueError, match=f'^{re.escape(str(path))} ') as caught:
            check_checkpoint(path)
        assert 'WEIGHTS_ONLY' not in str(caught.value)
        assert 'set to `False`' not in str(caught.value)
    torch.save(dict(meta=torch.ones(3), bias=torch.ones(2)), tmp_path / 'plain.pth')  # weights alone, one named meta
    check_checkpoint(tmp_path / 'plain.pth')
    with pytest.raises(FileNotFoundError, match=r'absent\.pth'):
        check_checkpoint(tmp_path / 'absent.pth')
    (tmp_path / 'folder.pth').mkdir()
    with pytest.raises(IsADirectoryError, match=r'folder\.pth'):
        check_checkpoint(tmp_path / 'folder.pth')


def test_what_is_a_checkpoint(tmp_path):
    torch.save(dict(state_dict={}), tmp_path / 'new.pth')
    torch.save(dict(state_dict={}), tmp_path / 'old.pth', _use_new_zipfile_serialization=False)
    (tmp_path / 'deepspeed').mkdir()
    torch.save(dict(module={}), tmp_path / 'deepspeed/mp_rank_00_model_states.pt')
    for name in ('new.pth', 'old.pth', 'deepspeed'):
        check_checkpoint(tmp_path / name)


@pytest.mark.e2e
@pytest.mark.parametrize(
    'command',
    [
        'test.py {config} {checkpoint}',
        'train.py {config} --resume {checkpoint}',
        'train.py {config} --cfg-options load_from={checkpoint}',
        'image_demo.py {image} {config} {checkpoint} --out-dir {out}',
        'video_demo.py {image} {image} --config {config} --checkpoint {checkpoint} --out {out}',
        'visualization/attention_maps.py {config} {checkpoint} {image} --query 1,1 --out {out}.png',
        'visualization/attention_explorer.py {config} {checkpoint} {image} --out {out}',
        'misc/average_checkpoints.py {checkpoint} {checkpoint} --out {out}',
        'misc/publish_model.py {checkpoint} {out}',
    ],
    ids=lambda command: ' '.join(command.split()[:3]),
)
def test_every_tool_refuses_what_is_not_a_checkpoint(attempt, tiny_data, tmp_path, monkeypatch, command):
    checkpoints(tmp_path)
    monkeypatch.chdir(tmp_path)  # where work dirs would be
    image = Path(tiny_data['BUILDINGS_ROOT'], 'img_dir/val/tile_0.png')
    before = set(tmp_path.rglob('*'))
    words = command.format(config=CONFIG, checkpoint=tmp_path / 'cut.pth', image=image, out=tmp_path / 'out').split()
    assert f'{tmp_path}/cut.pth is not a checkpoint' in fails(attempt(*tool(*words)))
    assert set(tmp_path.rglob('*')) == before


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


@pytest.mark.e2e
@pytest.mark.skipif(not Path('/proc/self').is_dir(), reason='no folder in which not even root can write')
@pytest.mark.parametrize(
    'command',
    [
        'train.py {config} --work-dir /proc/self/x',
        'test.py {config} {checkpoint} --work-dir {tmp} --out /proc/self/x',
        'visualization/attention_maps.py {config} {checkpoint} i.png --query 1,1 --out /proc/self/x.png',
        'visualization/attention_explorer.py {config} {checkpoint} i.png --out /proc/self/x.html',
        'misc/publish_model.py {checkpoint} /proc/self/x.pth',
        'analysis_tools/browse_dataset.py {config} --output-dir /proc/self/x',
        'analysis_tools/majority_baseline.py {config} --out /proc/self/x.md',
    ],
)
def test_a_folder_that_cannot_be_written_to_is_an_error_before_work(attempt, trained, tmp_path, command):
    words = command.format(config=CONFIG, checkpoint=trained[0] / 'iter_2.pth', tmp=tmp_path).split()
    assert '/proc/self' in fails(attempt(*tool(*words)))


# --- the tools' own


@pytest.mark.slow
def test_attention_maps_are_of_the_format_of_the_suffix(attempt, trained, tiny_data, tmp_path):
    """Another format, other weights and a device that is not there are refused."""
    good = trained[0] / 'iter_2.pth'
    checkpoint = torch.load(good, weights_only=False)
    del checkpoint['state_dict']['decode_head.conv_seg.weight']
    torch.save(checkpoint, tmp_path / 'other.pth')
    image = Path(tiny_data['BUILDINGS_ROOT'], 'img_dir/val/tile_0.png')

    def draw(path, out, *options):
        arguments = CONFIG, path, image, '--query', '1,1', '--out', tmp_path / out, *options
        return attempt(*tool('visualization/attention_maps.py', *arguments, '--cfg-options', *SMALL))

    assert 'q.xyz' in fails(draw(good, 'q.xyz'))
    assert 'decode_head.conv_seg.weight' in fails(draw(tmp_path / 'other.pth', 'q.png'))
    assert 'cuda:99' in fails(draw(good, 'q.png', '--device', 'cuda:99'))
    assert draw(good, 'q.jpg').returncode == 0
    assert Image.open(tmp_path / 'q.jpg').format == 'JPEG'
    assert sorted(path.name for path in tmp_path.iterdir()) == ['other.pth', 'q.jpg']


def test_a_text_in_a_config_may_be_longer_than_a_file_name(tmp_path):
    (tmp_path / 'list.txt').touch()
    dataset = dict(data_root=str(tmp_path), ann_file='list.txt', prompt='a' * 300)
    assert data_paths(Config(dict(test_dataloader=dict(dataset=dataset)))) == [tmp_path / 'list.txt']
