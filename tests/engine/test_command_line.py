"""What train.py and test.py, and the other tools, say to wrong configs, options, checkpoints, folders and signals."""

import ast
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

from mmattn.engine import check_checkpoint, command_line, load_config
from mmattn.engine.command_line import data_paths
from mmattn.engine.hooks.checkpoint import AsideBackend
from mmattn.utils.launch import launch

from ..forked_tools import run_command
from .test_tools import CONFIG, ROOT, SMALL, free_port


@pytest.fixture
def tool(tiny_data):
    """Run one of the tools; return its exit code, stdout and stderr."""

    def tool(name, *arguments, **env):
        words = [sys.executable, *(['-u'] if env else [])] if name.endswith('.py') else ['bash']
        environment = {
            **os.environ,
            **tiny_data,
            'OMP_NUM_THREADS': '1',
            'CUDA_VISIBLE_DEVICES': '',
            'PATH': f'{Path(sys.executable).parent}:{os.environ["PATH"]}',
            'PYTHONPATH': str(ROOT),
            **env,
        }
        words += [str(ROOT / 'tools' / name), *map(str, arguments)]
        done = run_command(words, environment)
        return done.returncode, done.stdout, done.stderr

    return tool


@pytest.fixture(scope='module')
def trained(run, tmp_path_factory):
    """A work dir after two iterations."""
    folder = tmp_path_factory.mktemp('trained')
    run(sys.executable, ROOT / 'tools/train.py', CONFIG, '--work-dir', folder, '--cfg-options', *SMALL)
    return folder


# --- configs


@pytest.mark.parametrize(
    ('name', 'text', 'error', 'said'),
    [
        ('none.py', None, FileNotFoundError, 'there is no such config'),
        ('folder', '', IsADirectoryError, 'this is a folder'),
        ('notes.txt', 'a = 1', ValueError, r'notes\.txt is not a config: its suffix must be one of \.py, \.json'),
        ('a.py', 'a = 1\nb = dict(\n', ValueError, r"/a\.py, line 2: SyntaxError: '\(' was never closed"),
        ('a.py', 'a = 1\nb = c\n', ValueError, r"/a\.py, line 2: NameError: name 'c' is not defined"),
        ('a.py', '_base_ = "none.py"', ValueError, r'/a\.py: FileNotFoundError: .*none\.py'),
        ('a.json', '{"a": 1,\n b}', ValueError, r'/a\.json, line 2: JSONDecodeError'),
    ],
)
def test_what_is_no_config(tmp_path, name, text, error, said):
    path = tmp_path / name
    if name == 'folder':
        path.mkdir()
    elif text is not None:
        path.write_text(text, encoding='utf-8')
    with pytest.raises(error, match=said) as raised:
        load_config(path)
    assert name in str(raised.value)


@pytest.mark.parametrize(
    ('name', 'meant'),
    [('default_hook', 'default_hooks'), ('train_cfgs', 'train_cfg'), ('lr_config', 'param_scheduler')],
)
def test_a_misspelt_setting(tmp_path, name, meant):
    path = tmp_path / 'own.py'
    path.write_text(f'{name} = dict(max_iters=3)\n', encoding='utf-8')
    with pytest.raises(ValueError, match=f"own\\.py: '{name}' is not a setting of the config; did you mean {meant}"):
        load_config(path)
    path.write_text(f'{name} = dict(max_iters=3)\n{meant} = dict(of_a_helper=[{name}])\n', encoding='utf-8')
    assert load_config(path)[meant].of_a_helper == [dict(max_iters=3)]


def test_an_error_in_a_base_config_names_the_base(tmp_path):
    (tmp_path / 'base.py').write_text('a = 1\n\nb = (\n', encoding='utf-8')
    (tmp_path / 'own.py').write_text("_base_ = './base.py'\n", encoding='utf-8')
    with pytest.raises(ValueError, match=r'base\.py, line 3: SyntaxError'):
        load_config(tmp_path / 'own.py')


@pytest.mark.parametrize(
    ('key', 'said'),
    [
        ('modle.decode_head.num_classes', r"'modle' is not a setting of the config; did you mean model\?"),
        ('train_dataloader.dataset.pipeline.9.size', 'does not fit .*: Index 9 exceeds'),
        ('optim_wrapper.optimizer.lr.base', 'does not fit .*lr is a dict in the child config'),
    ],
)
def test_an_option_that_does_not_fit(key, said):
    with pytest.raises(ValueError, match=said):
        load_config(CONFIG, {key: 1})


@pytest.mark.parametrize(
    ('key', 'value', 'said'),
    [
        ('optim_wrapper.optimizer.lr', '1e-3abc', r"must be a number, as in the config \(\S+\); got '1e-3abc'"),
        ('model.decode_head.num_classes', 'three', r"must be a number, as in the config \(2\); got 'three'"),
        ('model.decode_head.align_corners', 'flase', r"must be true or false, as in the config \(False\); got 'flase'"),
    ],
)
def test_text_in_place_of_a_number(key, value, said):
    with pytest.raises(ValueError, match=f'--cfg-options {key} {said}'):
        load_config(CONFIG, {key: value})


@pytest.mark.parametrize('launcher', ['pytorch', 'slurm', 'mpi'])
def test_a_launcher_that_did_not_start_the_process(tool, tmp_path, launcher):
    code, _, said = tool('train.py', CONFIG, '--work-dir', tmp_path, '--launcher', launcher)
    assert code == 1
    assert f'--launcher {launcher} is for processes that ' in said
    starters = dict(pytorch='bash tools/dist_train.sh', slurm='bash tools/slurm_train.sh', mpi='mpirun')
    assert starters[launcher] in said


@pytest.mark.parametrize('count', ['two', '0', '-1', '1.5'])
def test_a_number_of_processes_that_is_none(capsys, count):
    assert launch([f'--nproc_per_node={count}', 'train.py']) == 2
    assert capsys.readouterr().err == (
        f'error: the number of processes (GPUS) must be an integer, at least 1; got {count}\n'
    )


def test_a_port_in_use(tool):
    with socket.socket() as taken:
        taken.bind(('', 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, said = tool('dist_train.sh', CONFIG, 1, PORT=str(port))
    assert code == 1
    assert f'error: port {port} is in use; set another one, such as PORT=' in said
    assert 'Traceback' not in said


@pytest.fixture
def logged(monkeypatch):
    """What is logged, whichever logger the tests before have left: pairs of level and text."""
    found = []
    monkeypatch.setattr(command_line, 'print_log', lambda text, _, level: found.append((level, text)))
    return found


def test_a_new_key_is_a_warning_that_names_the_nearest(logged):
    cfg = load_config(CONFIG, {'train_cfg.max_itrs': 10})
    assert cfg.train_cfg.max_itrs == 10
    said = (
        '--cfg-options train_cfg.max_itrs: train_cfg.max_itrs is new in the config; did you mean train_cfg.max_iters?'
    )
    assert logged == [(logging.WARNING, said)]


def test_known_keys_are_no_warning(logged):
    options = {
        'train_dataloader.dataset.pipeline.3.crop_size': (8, 8),
        'load_from': 'x',
        'resume': 'auto',  # False in the config
        'find_unused_parameters': True,
    }
    cfg = load_config(CONFIG, {**options, 'custom_hooks': [], 'model': dict(_delete_=True, type='X')})
    assert cfg.train_dataloader.dataset.pipeline[3].crop_size == (8, 8)
    assert not logged


@pytest.mark.parametrize(
    ('value', 'parsed'), [('0110', 110), ("'0110'", '0110'), ('"0110"', '0110'), ('"[1,2]"', [1, 2])]
)
def test_digits_in_quotes_are_text(value, parsed):
    parser = ArgumentParser()
    command_line.add_config_options(parser)
    assert parser.parse_args(['--cfg-options', f'model.terms={value}']).cfg_options == {'model.terms': parsed}


def test_an_option_without_a_value_is_wrong_usage(tool):
    code, _, said = tool('train.py', CONFIG, '--cfg-options', 'model')
    assert code == 2
    assert said.endswith('train.py: error: --cfg-options must be key=value …; got model\n')


def test_a_list_of_dicts_is_wrong_usage(capsys):
    parser, option = ArgumentParser(), 'param_scheduler=[dict(type="X",warmup=60)]'
    command_line.add_config_options(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(['--cfg-options', option])
    assert f'--cfg-options sets no list of dicts; got {option}' in capsys.readouterr().err


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
    return {
        folder / 'empty.pth': 'it is empty',
        folder / 'text.pth': 'torch.save did not write it',
        folder / 'cut.pth': 'it is truncated',
        folder / 'folder.pth': 'it is a folder',
        folder / 'zip.pth': 'it is another zip file',
    }


def test_what_is_not_a_checkpoint(tmp_path):
    for path, reason in checkpoints(tmp_path).items():
        with pytest.raises(ValueError, match=f'^{re.escape(f"{path} is not a checkpoint ({reason})")}$'):
            check_checkpoint(path)
    with pytest.raises(FileNotFoundError, match=r'there is no such checkpoint.*none\.pth'):
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
def test_every_tool_refuses_what_is_not_a_checkpoint(tool, tiny_data, tmp_path, command):
    checkpoints(tmp_path)
    image = Path(tiny_data['BUILDINGS_ROOT'], 'img_dir/val/tile_0.png')
    checkpoint, out = tmp_path / 'cut.pth', tmp_path / 'out'
    name, *arguments = command.format(config=CONFIG, checkpoint=checkpoint, image=image, out=out).split()
    work_dir = ['--work-dir', tmp_path / 'work'] if name in ('test.py', 'train.py') else []
    code, _, said = tool(name, *arguments[:1], *work_dir, *arguments[1:])
    assert code == 1
    assert said.startswith(f'{Path(name).name}: error: {checkpoint} is not a checkpoint (it is truncated)')
    assert 'Traceback' not in said
    assert not out.exists()
    assert not (tmp_path / 'work').exists()


# --- errors of a run


def test_an_error_of_the_config_names_the_component_and_the_log_has_the_traceback(tool, tmp_path):
    arguments = [CONFIG, '--work-dir', tmp_path, '--cfg-options', *SMALL, 'model.decode_head.chanels=3']
    code, _, said = tool('train.py', *arguments)
    assert code == 1
    said = said[said.index('train.py: error: ') :]  # warnings come before
    message, where = said.splitlines()
    assert message.startswith('train.py: error: building BiCCHead: ')
    assert message.endswith("got an unexpected keyword argument 'chanels'")
    (log,) = tmp_path.glob('*/*.log')
    assert where == f'(the traceback is in {log})'
    assert 'Traceback (most recent call last)' in log.read_text('utf-8')


@pytest.mark.e2e
def test_of_two_processes_one_says_what_is_wrong(tool, tmp_path):
    code, _, said = tool('dist_train.sh', tmp_path / 'none.py', 2, PORT=free_port())
    assert code == 1
    assert said.count('there is no such config') == 1
    options = [*SMALL, 'model.decode_head.type=mmattn.BiCCHed']
    arguments = [CONFIG, 2, '--work-dir', tmp_path, '--cfg-options', *options]
    code, _, said = tool('dist_train.sh', *arguments, PORT=free_port())
    assert code == 1
    assert said.count('mmattn.BiCCHed is not in the') == 1
    assert 'Traceback' not in said


@pytest.mark.e2e
@pytest.mark.parametrize('processes', [1, 2])
def test_ctrl_c_says_how_to_resume(tiny_data, tmp_path, processes):
    tool = (
        [sys.executable, ROOT / 'tools/train.py', CONFIG]
        if processes == 1
        else ['bash', ROOT / 'tools/dist_train.sh', CONFIG, 2]
    )
    options = [*SMALL, 'train_cfg.max_iters=100000', 'train_cfg.val_interval=100000']
    environment = {
        **os.environ,
        **tiny_data,
        'OMP_NUM_THREADS': '1',
        'CUDA_VISIBLE_DEVICES': '',
        'PATH': f'{Path(sys.executable).parent}:{os.environ["PATH"]}',
        'PORT': free_port(),
    }
    words = [str(word) for word in (*tool, '--work-dir', tmp_path, '--cfg-options', *options)]
    with (
        open(tmp_path / 'said', 'w', encoding='utf-8') as errors,
        subprocess.Popen(
            words,
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
    again = f'Add --resume to the same command to continue from the last checkpoint in {tmp_path}.'
    assert f'train.py: Interrupted. {again}\n' in said
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
def test_a_disk_that_is_full_at_a_checkpoint(tool, tiny_data, tmp_path):
    script = tmp_path / 'full_disk.py'
    script.write_text(FULL_DISK, encoding='utf-8')
    work_dir = tmp_path / 'work'
    train = ROOT / 'tools/train.py'
    code, _, said = tool(f'{script}', train, CONFIG, '--work-dir', work_dir, '--cfg-options', *SMALL)
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
def test_a_folder_that_cannot_be_written_to_is_an_error_before_work(tool, trained, tmp_path):
    checkpoint = trained / 'iter_2.pth'
    for name, arguments in {
        'train.py': [CONFIG, '--work-dir', '/proc/self/x'],
        'test.py': [CONFIG, checkpoint, '--work-dir', tmp_path, '--out', '/proc/self/x'],
        'visualization/attention_maps.py': [CONFIG, checkpoint, 'i.png', '--query', '1,1', '--out', '/proc/self/x.png'],
        'visualization/attention_explorer.py': [CONFIG, checkpoint, 'i.png', '--out', '/proc/self/x.html'],
        'misc/publish_model.py': [checkpoint, '/proc/self/x.pth'],
        'analysis_tools/browse_dataset.py': [CONFIG, '--output-dir', '/proc/self/x'],
        'analysis_tools/majority_baseline.py': [CONFIG, '--out', '/proc/self/x.md'],
    }.items():
        code, _, said = tool(name, *arguments)
        assert code == 1, name
        assert 'cannot be written to' in said, name
        assert 'Traceback' not in said


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
@pytest.mark.parametrize('name', ['attention_maps', 'attention_explorer'])
def test_a_device_that_is_not_there(tool, trained, tiny_data, tmp_path, name):
    image = Path(tiny_data['BUILDINGS_ROOT'], 'img_dir/val/tile_0.png')
    arguments = [CONFIG, trained / 'iter_2.pth', image, '--device', 'cuda', '--out', tmp_path / 'x.png']
    code, _, said = tool(
        f'visualization/{name}.py', *arguments, *(['--query', '1,1'] if name == 'attention_maps' else [])
    )
    assert code == 1
    assert f"{name}.py: error: device must be one of cpu; got 'cuda'" in said


@pytest.mark.parametrize('name', ['dist_train', 'dist_test', 'slurm_train', 'slurm_test', 'slurm_submit'])
def test_a_script_without_arguments_prints_its_usage(tool, name):
    code, out, said = tool(f'{name}.sh')
    assert (code, out) == (2, '')
    assert re.search(rf': {name}\.sh [A-Z_ ]+ \[arguments of \w+\.py\]\.\n', said)
    assert 'unbound' not in said


# --- the tools' own


def test_get_flops_takes_the_configs_own_size(tool):
    code, out, _ = tool('analysis_tools/get_flops.py', CONFIG, '--depth', 1)
    assert code == 0
    assert 'input 256×256: ' in out
    code, _, said = tool('analysis_tools/get_flops.py', ROOT / 'configs/sst')
    assert code == 1
    assert 'metafile.yml has no figures of a paper (Complexity)' in said


def test_attention_maps_are_of_the_format_of_the_suffix(tool, trained, tiny_data, tmp_path):
    from PIL import Image

    image = Path(tiny_data['BUILDINGS_ROOT'], 'img_dir/val/tile_0.png')
    arguments = [CONFIG, trained / 'iter_2.pth', image, '--query', '1,1', '--cfg-options', *SMALL, '--out']
    code, _, said = tool('visualization/attention_maps.py', *arguments, tmp_path / 'q.xyz')
    assert code == 1
    assert '--out must have a suffix of an image format (' in said
    assert f'got {tmp_path}/q.xyz' in said
    assert tool('visualization/attention_maps.py', *arguments, tmp_path / 'q.jpg')[0] == 0
    assert Image.open(tmp_path / 'q.jpg').format == 'JPEG'
    assert [path.name for path in tmp_path.iterdir()] == ['q.jpg']


def test_attention_maps_of_other_weights_are_refused(tool, trained, tiny_data, tmp_path):
    import torch

    checkpoint = torch.load(trained / 'iter_2.pth', weights_only=False)
    del checkpoint['state_dict']['decode_head.conv_seg.weight']
    torch.save(checkpoint, tmp_path / 'other.pth')
    image = Path(tiny_data['BUILDINGS_ROOT'], 'img_dir/val/tile_0.png')
    arguments = [CONFIG, tmp_path / 'other.pth', image, '--query', '1,1', '--out', tmp_path / 'q.png']
    code, _, said = tool('visualization/attention_maps.py', *arguments, '--cfg-options', *SMALL)
    assert code == 1
    assert 'decode_head.conv_seg.weight' in said
    assert not (tmp_path / 'q.png').exists()


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
UNREAD = {  # an option that changes a helper → what to set
    'data_root=new': 'set train_dataloader.dataset.data_root, val_dataloader.dataset.data_root',
    'optimizer.lr=0.5': 'set optim_wrapper.optimizer.lr',
    'num_frames=4': 'set train_dataloader.dataset.num_frames',
    'heads=4': 'set model.heads',
    'size=(32, 32)': 'set train_dataloader.dataset.pipeline.1.scale, val_dataloader.dataset.pipeline.1.scale',
    'pipeline.1.scale=(32, 32)': 'dataset.pipeline.1.scale, val_dataloader.dataset.pipeline.1.scale',
}


@pytest.fixture
def helpers(tmp_path):
    (tmp_path / 'base.py').write_text(HELPERS)

    def config(text):
        path = tmp_path / 'mine.py'
        path.write_text(f"_base_ = './base.py'\n{text}\n")
        return path

    return config


@pytest.mark.parametrize(('option', 'said'), UNREAD.items())
def test_an_option_that_no_setting_reads_is_an_error(helpers, option, said):
    key, _, value = option.partition('=')
    value = ast.literal_eval(value) if value[0] in '(04' else value
    with pytest.raises(ValueError, match=re.escape(f'--cfg-options {key} has no effect')) as error:
        load_config(helpers(''), {key: value})
    assert str(error.value).endswith(said)


@pytest.mark.parametrize(
    ('text', 'said'),
    [
        ("data_root = 'new'", 'data_root has no effect.*set train_dataloader.dataset.data_root'),
        ('optimizer = dict(lr=0.5)', 'optimizer has no effect.*set optim_wrapper.optimizer'),
    ],
)
def test_a_config_that_changes_only_a_helper_is_an_error(helpers, text, said):
    with pytest.raises(ValueError, match=f'mine.py: {said}'):
        load_config(helpers(text))


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
