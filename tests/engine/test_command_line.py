"""What train.py and test.py, and the other tools, say to wrong configs, options, checkpoints, folders and signals."""

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import zipfile
from argparse import ArgumentParser
from functools import partial
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from PIL import Image

from mmattn.engine import check_checkpoint, command_line, load_config
from mmattn.engine.command_line import data_paths
from mmattn.engine.hooks.checkpoint import AsideBackend
from mmattn.utils.launch import launch

from ..forked_tools import run_command, tool
from .test_tools import CONFIG, ROOT, SMALL, free_port

PLUGINS = "model = dict(backbone=dict(type='{}', depth=34, plugins=[dict(cfg=1)]))"


@pytest.fixture
def call(tiny_data):
    """Run one of the tools; return its exit code, stdout and stderr."""

    def call(name, *arguments, **env):
        environment = {
            **os.environ,
            **tiny_data,
            'OMP_NUM_THREADS': '1',
            'CUDA_VISIBLE_DEVICES': '',
            'PATH': f'{Path(sys.executable).parent}:{os.environ["PATH"]}',
            'PYTHONPATH': str(ROOT),
            **env,
        }
        done = run_command(tool(name, *arguments), environment)
        return done.returncode, done.stdout, done.stderr

    return call


@pytest.fixture(scope='module')
def trained(run, tmp_path_factory):
    """A work dir after two iterations."""
    folder = tmp_path_factory.mktemp('trained')
    run(*tool('train.py', CONFIG, '--work-dir', folder, '--cfg-options', *SMALL))
    return folder


# --- configs


@pytest.mark.parametrize(
    ('name', 'text', 'error', 'names'),
    [
        ('none.py', None, FileNotFoundError, r'none\.py'),
        ('folder', '', IsADirectoryError, 'folder'),
        ('notes.txt', 'a = 1', ValueError, r'notes\.txt .*\.py, \.json'),
        ('a.py', 'a = 1\nb = dict(\n', ValueError, r'/a\.py, line 2: SyntaxError'),
        ('a.py', 'a = 1\nb = c\n', ValueError, r'/a\.py, line 2: NameError'),
        ('a.py', '_base_ = "none.py"', ValueError, r'/a\.py: FileNotFoundError: .*none\.py'),
        ('a.py', "_base_ = './base.py'\n", ValueError, r'base\.py, line 3: SyntaxError'),
        ('a.json', '{"a": 1,\n b}', ValueError, r'/a\.json, line 2: JSONDecodeError'),
        ('a.py', 'default_hook = dict(max_iters=3)', ValueError, "a.py: 'default_hook' .*default_hooks"),
        ('a.py', 'train_cfgs = dict(max_iters=3)', ValueError, "a.py: 'train_cfgs' .*train_cfg"),
        ('a.py', 'lr_config = dict(max_iters=3)', ValueError, "a.py: 'lr_config' .*param_scheduler"),
        ('a.py', PLUGINS.format('mmseg.ResNetV1c'), ValueError, 'plugins .*50 .* 34'),
    ],
)
def test_what_is_no_config(tmp_path, name, text, error, names):
    (tmp_path / 'base.py').write_text('a = 1\n\nb = (\n', encoding='utf-8')
    path = tmp_path / name
    if name == 'folder':
        path.mkdir()
    elif text is not None:
        path.write_text(text, encoding='utf-8')
    with pytest.raises(error, match=names):
        load_config(path)


def test_a_name_that_a_setting_reads_is_no_misspelt_setting(tmp_path):
    (tmp_path / 'a.py').write_text('lr_config = dict(a=3)\nparam_scheduler = dict(of_a_helper=[lr_config])\n')
    assert load_config(tmp_path / 'a.py').param_scheduler.of_a_helper == [dict(a=3)]


@pytest.mark.parametrize(
    ('key', 'value', 'names'),
    [
        ('modle.decode_head.num_classes', 1, "'modle' .* model"),
        ('train_dataloader.dataset.pipeline.9.size', 1, 'Index 9'),
        ('optim_wrapper.optimizer.lr.base', 1, 'lr'),
        ('optim_wrapper.optimizer.lr', '1e-3abc', "lr .*'1e-3abc'"),
        ('model.decode_head.num_classes', 'three', "num_classes .*'three'"),
        ('model.decode_head.align_corners', 'flase', "align_corners .*'flase'"),
    ],
)
def test_an_option_that_does_not_fit(key, value, names):
    with pytest.raises(ValueError, match=names):
        load_config(CONFIG, {key: value})


@pytest.mark.parametrize(
    ('name', 'arguments', 'code', 'names'),
    [
        ('train.py', '--launcher pytorch', 1, 'bash tools/dist_train.sh'),
        ('train.py', '--launcher slurm', 1, 'bash tools/slurm_train.sh'),
        ('train.py', '--launcher mpi', 1, 'mpirun'),
        ('train.py', '--cfg-options model', 2, '--cfg-options .*got model'),
        ('train.py', '--cfg-options param_scheduler=[dict(type="X",warmup=60)]', 2, '--cfg-options .*param_scheduler'),
        ('analysis_tools/get_flops.py', 'configs/sst', 1, r'sst/metafile\.yml'),
    ],
)
def test_wrong_arguments(call, tmp_path, monkeypatch, name, arguments, code, names):
    monkeypatch.chdir(tmp_path)  # where work dirs would be
    words = arguments.split()
    config = ROOT / words.pop() if words[0].startswith('configs') else CONFIG
    found, _, said = call(name, config, *words)
    assert found == code
    assert re.search(names, said)
    assert 'Traceback' not in said


@pytest.mark.parametrize('count', ['two', '0', '-1', '1.5'])
def test_a_number_of_processes_that_is_none(capsys, count):
    assert launch([f'--nproc_per_node={count}', 'train.py']) == 2
    assert re.search(rf'GPUS.* {count}\n', capsys.readouterr().err)


def test_a_port_in_use(call):
    with socket.socket() as taken:
        taken.bind(('', 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, _, said = call('dist_train.sh', CONFIG, 1, PORT=port)
    assert code == 1
    assert f'error: port {port} is in use' in said
    assert 'Traceback' not in said


@pytest.fixture
def logged(monkeypatch):
    """What is logged, whichever logger the tests before have left: pairs of level and text."""
    found = []
    monkeypatch.setattr(command_line, 'print_log', lambda text, _, level: found.append((level, text)))
    return found


def test_a_new_key_is_a_warning_that_names_the_nearest(logged):
    assert load_config(CONFIG, {'train_cfg.max_itrs': 10}).train_cfg.max_itrs == 10
    ((level, said),) = logged
    assert level == logging.WARNING
    assert re.search(r'train_cfg\.max_itrs .*train_cfg\.max_iters', said)


def test_plugins_of_another_backbone(tmp_path):
    (tmp_path / 'a.py').write_text(PLUGINS.format('MyResNet'), encoding='utf-8')
    assert load_config(tmp_path / 'a.py').model.backbone.depth == 34


def test_known_keys_are_no_warning(logged):
    options = {
        'train_dataloader.dataset.pipeline.3.crop_size': (8, 8),
        'load_from': 'x',
        'resume': 'auto',  # False in the config
        'find_unused_parameters': True,
        'train_dataloader.num_workers': 0,
    }
    cfg = load_config(CONFIG, {**options, 'custom_hooks': [], 'model': dict(_delete_=True, type='X')})
    assert cfg.train_dataloader.dataset.pipeline[3].crop_size == (8, 8)
    assert 'persistent_workers' not in cfg.train_dataloader  # torch refuses it without workers
    assert not logged


@pytest.mark.parametrize(
    ('value', 'parsed'), [('0110', 110), ("'0110'", '0110'), ('"0110"', '0110'), ('"[1,2]"', [1, 2])]
)
def test_digits_in_quotes_are_text(value, parsed):
    parser = ArgumentParser()
    command_line.add_config_options(parser)
    assert parser.parse_args(['--cfg-options', f'model.terms={value}']).cfg_options == {'model.terms': parsed}


# --- checkpoints


def checkpoints(folder):
    """Write files that are no checkpoints; return the reasons by path."""
    torch.save(dict(state_dict={}), folder / 'whole.pth')
    (folder / 'empty.pth').touch()
    (folder / 'text.pth').write_text('not yet trained', encoding='utf-8')
    (folder / 'cut.pth').write_bytes((folder / 'whole.pth').read_bytes()[:-100])
    (folder / 'folder.pth').mkdir()
    with zipfile.ZipFile(folder / 'zip.pth', 'w') as archive:
        archive.writestr('notes.txt', 'x')
    reasons = dict(empty='empty', text='torch.save', cut='truncated', folder='folder', zip='zip')
    return {folder / f'{name}.pth': reason for name, reason in reasons.items()}


def test_what_is_not_a_checkpoint(tmp_path):
    for path, reason in checkpoints(tmp_path).items():
        with pytest.raises(ValueError, match=rf'^{re.escape(str(path))} is not a checkpoint \(.*{reason}'):
            check_checkpoint(path)
    with pytest.raises(FileNotFoundError, match=r'none\.pth'):
        check_checkpoint(tmp_path / 'none.pth')


@pytest.mark.skipif(not hasattr(torch.serialization, 'set_crc32_options'), reason='torch < 2.6 always writes checksums')
def test_a_changed_bit_is_found_if_there_is_a_checksum(tmp_path):
    for name, checksum in (('with', True), ('without', False)):
        path = tmp_path / f'{name}.pth'
        torch.serialization.set_crc32_options(checksum)
        torch.save(dict(state_dict=dict(weight=torch.full((100,), 1.5))), path)
        torch.serialization.set_crc32_options(True)
        content = bytearray(path.read_bytes())
        content[content.index(torch.full((100,), 1.5).numpy().tobytes()) + 2] ^= 1
        check_checkpoint(path)
        path.write_bytes(content)
    check_checkpoint(path)
    with pytest.raises(ValueError, match=r'with\.pth is not a checkpoint \(it is damaged: Bad CRC-32'):
        check_checkpoint(tmp_path / 'with.pth')


def test_what_is_a_checkpoint(tmp_path):
    torch.save(dict(state_dict={}), tmp_path / 'new.pth')
    torch.save(dict(state_dict={}), tmp_path / 'old.pth', _use_new_zipfile_serialization=False)
    (tmp_path / 'deepspeed').mkdir()
    (tmp_path / 'deepspeed/mp_rank_00_model_states.pt').touch()
    for name in ('new.pth', 'old.pth', 'deepspeed'):
        check_checkpoint(tmp_path / name)
    check_checkpoint('https://host/model.pth')


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
        'misc/publish_model.py {checkpoint} {out}',
    ],
    ids=lambda command: ' '.join(command.split()[:3]),
)
def test_every_tool_refuses_what_is_not_a_checkpoint(call, tiny_data, tmp_path, monkeypatch, command):
    checkpoints(tmp_path)
    monkeypatch.chdir(tmp_path)  # where work dirs would be
    image = Path(tiny_data['BUILDINGS_ROOT'], 'img_dir/val/tile_0.png')
    before = set(tmp_path.rglob('*'))
    words = command.format(config=CONFIG, checkpoint=tmp_path / 'cut.pth', image=image, out=tmp_path / 'out').split()
    code, _, said = call(*words)
    assert code == 1
    assert said.startswith(f'{Path(words[0]).name}: error: {tmp_path}/cut.pth is not a checkpoint')
    assert 'Traceback' not in said
    assert set(tmp_path.rglob('*')) == before


# --- errors of a run


def test_an_error_of_the_config_names_the_component_and_the_log_has_the_traceback(call, tmp_path):
    arguments = [CONFIG, '--work-dir', tmp_path, '--cfg-options', *SMALL, 'model.decode_head.chanels=3']
    code, _, said = call('train.py', *arguments)
    assert code == 1
    message, where = said[said.index('train.py: error: ') :].splitlines()  # warnings come before
    assert re.search("BiCCHead.*'chanels'", message)
    (log,) = tmp_path.glob('*/*.log')
    assert str(log) in where
    assert 'Traceback (most recent call last)' in log.read_text('utf-8')


@pytest.mark.e2e
def test_of_two_processes_one_says_what_is_wrong(call, tmp_path):
    for config, option, said in (
        (tmp_path / 'none.py', '', 'none.py'),
        (CONFIG, 'model.decode_head.type=mmattn.BiCCHed', 'mmattn.BiCCHed is not in the'),
    ):
        options = ['--work-dir', tmp_path, '--cfg-options', *SMALL, *option.split()]
        code, _, stderr = call('dist_train.sh', config, 2, *options, PORT=free_port())
        assert code == 1
        assert stderr.count(said) == 1
        assert 'Traceback' not in stderr


@pytest.mark.e2e
@pytest.mark.parametrize('processes', [1, 2])
def test_ctrl_c_says_how_to_resume(tiny_data, tmp_path, processes):
    command = tool('train.py', CONFIG) if processes == 1 else tool('dist_train.sh', CONFIG, 2)
    lengths = 'train_cfg.max_iters', 'train_cfg.val_interval', 'param_scheduler.0.end'
    options = [*SMALL, *(f'{length}=100000' for length in lengths)]
    environment = {
        **os.environ,
        **tiny_data,
        'OMP_NUM_THREADS': '1',
        'CUDA_VISIBLE_DEVICES': '',
        'PATH': f'{Path(sys.executable).parent}:{os.environ["PATH"]}',
        'PORT': free_port(),
    }
    with (
        open(tmp_path / 'said', 'w', encoding='utf-8') as errors,
        subprocess.Popen(
            [str(word) for word in (*command, '--work-dir', tmp_path, '--cfg-options', *options)],
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


FULL_DISK = """
import resource, runpy, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from mmattn.engine.hooks.checkpoint import AsideBackend
put = AsideBackend.put
def limited(*args):
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    put(*args)
AsideBackend.put = limited
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name='__main__')
"""


@pytest.mark.e2e
def test_a_disk_that_is_full_at_a_checkpoint(call, tiny_data, tmp_path):
    script = tmp_path / 'full_disk.py'
    script.write_text(FULL_DISK, encoding='utf-8')
    work_dir = tmp_path / 'work'
    code, _, said = call(str(script), *tool('train.py', CONFIG)[1:], '--work-dir', work_dir, '--cfg-options', *SMALL)
    assert code == 1
    assert f'train.py: error: {work_dir}/iter_2.pth: File too large\n' in said
    assert 'Traceback' not in said
    assert not list(work_dir.glob('*.pth'))
    assert {path.name for path in work_dir.glob('.*')} <= {'.lock'}  # which the next run takes


def test_a_failed_write_keeps_the_file_that_is_there(tmp_path, monkeypatch):
    path = tmp_path / 'iter_2.pth'
    path.write_bytes(b'whole')

    def fail(descriptor):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(os, 'fsync', fail)
    with pytest.raises(OSError, match=rf"No space left on device: '{path}'"):
        AsideBackend().put(b'other', path)
    assert path.read_bytes() == b'whole'
    assert list(tmp_path.iterdir()) == [path]


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
def test_a_folder_that_cannot_be_written_to_is_an_error_before_work(call, trained, tmp_path, command):
    code, _, said = call(*command.format(config=CONFIG, checkpoint=trained / 'iter_2.pth', tmp=tmp_path).split())
    assert code == 1
    assert 'cannot be written to' in said
    assert 'Traceback' not in said


# --- the tools' own


def test_get_flops_takes_the_configs_own_size(call):
    code, out, _ = call('analysis_tools/get_flops.py', CONFIG, '--depth', 1)
    assert code == 0
    assert 'input 256×256: ' in out


def test_attention_maps_are_of_the_format_of_the_suffix(call, trained, tiny_data, tmp_path):
    """Another format, other weights and a device that is not there are refused."""
    checkpoint = torch.load(trained / 'iter_2.pth', weights_only=False)
    del checkpoint['state_dict']['decode_head.conv_seg.weight']
    torch.save(checkpoint, tmp_path / 'other.pth')
    image = Path(tiny_data['BUILDINGS_ROOT'], 'img_dir/val/tile_0.png')

    def draw(path, out, *options):
        arguments = CONFIG, path, image, '--query', '1,1', '--out', tmp_path / out, *options
        return call('visualization/attention_maps.py', *arguments, '--cfg-options', *SMALL)

    weights = trained / 'iter_2.pth'
    for code, _, said, names in (
        (*draw(weights, 'q.xyz'), 'q.xyz'),
        (*draw(tmp_path / 'other.pth', 'q.png'), 'decode_head.conv_seg.weight'),
        (*draw(weights, 'q.png', '--device', 'cuda:99'), "'cuda:99'"),
    ):
        assert code == 1
        assert names in said
    assert draw(weights, 'q.jpg')[0] == 0
    assert Image.open(tmp_path / 'q.jpg').format == 'JPEG'
    assert sorted(path.name for path in tmp_path.iterdir()) == ['other.pth', 'q.jpg']


def test_a_text_in_a_config_may_be_longer_than_a_file_name(tmp_path):
    (tmp_path / 'list.txt').touch()
    dataset = dict(data_root=str(tmp_path), ann_file='list.txt', prompt='a' * 300)
    assert data_paths(Config(dict(test_dataloader=dict(dataset=dataset)))) == [tmp_path / 'list.txt']


HELPERS = """
data_root = 'old'
size = (64, 64)
flip = True
unread = 3.5
heads = 8
num_frames = 8
optimizer = dict(type='SGD', lr=0.1)
pipeline = [dict(type='LoadImageFromFile'), dict(type='Resize', scale=size, keep_ratio=flip)]
model = dict(heads=heads, wide=8)
optim_wrapper = dict(type='OptimWrapper', optimizer=optimizer)
train_dataloader = dict(batch_size=2, dataset=dict(data_root=data_root, pipeline=pipeline, num_frames=num_frames))
val_dataloader = dict(batch_size=1, dataset=dict(data_root=data_root, pipeline=pipeline))
"""


@pytest.fixture
def helpers(tmp_path):
    (tmp_path / 'base.py').write_text(HELPERS)

    def config(text):
        path = tmp_path / 'mine.py'
        path.write_text(f"_base_ = './base.py'\n{text}\n")
        return path

    return config


@pytest.mark.parametrize(
    ('text', 'options', 'names'),
    [
        ('', {'data_root': 'new'}, 'data_root .*train_dataloader.dataset.data_root, val_dataloader.dataset.data_root$'),
        ('', {'optimizer.lr': 0.5}, r'optimizer.lr .*optim_wrapper.optimizer.lr$'),
        ('', {'num_frames': 4}, 'num_frames .*train_dataloader.dataset.num_frames$'),
        ('', {'heads': 4}, 'heads .*model.heads$'),
        ('', {'size': (32, 32)}, 'size .*train_dataloader.*1.scale, val_dataloader.dataset.pipeline.1.scale$'),
        ('', {'pipeline.1.scale': (32, 32)}, r'pipeline.1.scale .*val_dataloader.dataset.pipeline.1.scale$'),
        ("data_root = 'new'", {}, 'mine.py: data_root .*train_dataloader.dataset.data_root'),
        ('optimizer = dict(lr=0.5)', {}, 'mine.py: optimizer .*optim_wrapper.optimizer'),
    ],
)
def test_a_helper_that_no_setting_reads_is_an_error(helpers, text, options, names):
    with pytest.raises(ValueError, match=names):
        load_config(helpers(text), options)


@pytest.mark.parametrize(
    ('text', 'options'),
    [
        ("data_root = 'new'\ntrain_dataloader = dict(dataset=dict(data_root=data_root))", {}),  # a setting has it
        ('threshold = 0.5', {'threshold': 0.6}),  # new, perhaps for a hook
        ('unread = 4.5', {}),
        ('', {'unread': 4.5}),
        ('', {'flip': False}),
        ('', {'train_dataloader.dataset.data_root': 'new'}),
        ("data_root = 'old'", {}),
    ],
)
def test_names_that_may_be_changed(helpers, text, options):
    load_config(helpers(text), options)
