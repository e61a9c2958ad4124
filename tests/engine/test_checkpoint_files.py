"""Every way to name a checkpoint leads through one door, and honest files of all kinds pass it."""

import argparse
import ast
import collections
import functools
import hashlib
import http.server
import importlib
import io
import json
import re
import runpy
import sys
import tarfile
import threading
import types
import zipfile
from pathlib import Path

import addict
import numpy as np
import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.logging import HistoryBuffer
from mmengine.model import BaseModel, BaseModule
from mmengine.runner import CheckpointLoader, Runner, checkpoint, load_checkpoint
from torch import nn
from torch.utils.data import DataLoader

from common.region_extractors import load_backbone as load_grid_backbone
from common.segmentation import Start
from mmattn.engine import (
    check_checkpoint,
    checkpoint_files,
    guard_checkpoints,
    load_config,
    read_checkpoint,
)
from mmattn.language.captioning import CaptionInferencer
from mmattn.segmentation.inferencer import SegmentationInferencer
from mmattn.video.backbone_weights import load_backbone
from mmattn.video.inferencer import VOSInferencer

from ..hostile_pickle import Code
from ..requirements import requires

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / 'configs/bi_cc/bi-cc_r18-d8-half_1xb8-50_buildings-256x256.py'
DETECTOR = next((ROOT / 'configs/attended_residual').glob('faster*bccd*.py'))
VIDEO = ROOT / 'configs/sst/sst-grid_r18-d8-half_1xb4-400_davis-240p.py'
CAPTIONS = ROOT / 'configs/eta/eta_small_1xb10-10e_flickr8k.py'
TRUST = 'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'
RESNET = dict(type='mmseg.ResNet', depth=18, base_channels=8)
PREPROCESSOR = dict(type='mmseg.SegDataPreProcessor')

# What names a checkpoint, by the file that reads it. EVIL is a file whose pickle runs code, and OUT a new path.
WAYS = {
    'tools/train.py': f'{CONFIG} --resume EVIL --work-dir OUT',
    'tools/test.py': f'{CONFIG} EVIL --work-dir OUT',
    'tools/image_demo.py': f'IMAGE {CONFIG} EVIL --out-dir OUT',
    'tools/video_demo.py': f'CLIP MASK --out OUT --config {VIDEO} --checkpoint EVIL',
    'tools/caption_demo.py': f'{CAPTIONS} EVIL --regions STORE --out OUT',
    'tools/grounding_demo.py': f'{CONFIG} EVIL --regions STORE 1 [a] --out OUT',
    'tools/vqa_demo.py': f'{CONFIG} EVIL --regions STORE 1 what --out OUT',
    'tools/translation_demo.py': f'{CONFIG} EVIL --out OUT',
    'tools/deployment/export.py': f'{CONFIG} EVIL --out OUT.onnx',
    'tools/visualization/attention_explorer.py': f'{CONFIG} EVIL IMAGE --out OUT.html',
    'tools/visualization/attention_maps.py': f'{CONFIG} EVIL --out OUT.png',
    'tools/dataset_converters/grid_features.py': f'{CONFIG} EVIL IMAGE --out-dir OUT',
    'tools/dataset_converters/region_features.py': f'{CONFIG} EVIL IMAGE --out-dir OUT',
    'tools/misc/publish_model.py': 'EVIL OUT',
    'tools/misc/average_checkpoints.py': 'EVIL --out OUT',
    'tools/misc/ensemble_checkpoints.py': 'EVIL --out OUT',
    'tools/misc/tune_translation.py': None,  # average_checkpoints.average
    'tools/reproduction/runs.py': None,  # checkpoints of its own trainings
    'mmattn/engine/command_line.py': lambda evil: load_config(CONFIG) and load_checkpoint(nn.Linear(1, 1), str(evil)),
    'mmattn/engine/hooks/checkpoint.py': lambda evil: run_with(dict(load_from=str(evil))),
    'mmattn/segmentation/inferencer.py': lambda evil: SegmentationInferencer(CONFIG, str(evil)),
    'mmattn/detection/inferencer.py': lambda evil: importlib.import_module(
        'mmattn.detection.inferencer'
    ).DetectionInferencer(DETECTOR, str(evil)),
    'mmattn/language/inferencer.py': lambda evil: CaptionInferencer(CAPTIONS, evil),
    'mmattn/video/inferencer.py': lambda evil: VOSInferencer(VIDEO, evil, device='cpu'),
    'mmattn/video/backbone_weights.py': lambda evil: load_backbone(
        nn.Linear(1, 1), dict(init_cfg=dict(checkpoint=evil))
    ),
    'tools/dataset_converters/common/region_extraction.py': None,  # grid_features.py and region_features.py
    'tools/dataset_converters/common/region_extractors.py': lambda evil: load_grid_backbone(
        Config(dict(model=dict(data_preprocessor=PREPROCESSOR, backbone=RESNET))), str(evil)
    ),
    'tools/dataset_converters/common/segmentation.py': lambda evil: Start(pretrained=evil).check(),
    'mmattn/deployment/network.py': None,  # SegmentationInferencer
}

OVER_OTHERS = 'misc/tune_translation', 'dataset_converters/grid_features'  # another file of the list reads for them


@pytest.fixture
def ran(tmp_path):
    path = tmp_path / 'ran'
    yield path
    assert not path.exists()


@pytest.fixture
def evil(ran, tmp_path):
    path = tmp_path / 'iter_1.pth'
    torch.save(dict(state_dict=nn.Linear(1, 1).state_dict(), meta=Code(ran)), path)
    return path


@pytest.fixture(autouse=True)
def _unguarded():
    """As in a new process: mmengine's own loaders, which run the code in a file."""
    own = [getattr(checkpoint, name) for name in dir(checkpoint) if name.startswith('load_from_')]
    for prefixes, name in ((checkpoint_files.PREFIXES, 'local'), (('http://', 'https://'), 'http')):
        CheckpointLoader.register_scheme(prefixes, next(f for f in own if f.__name__ == f'load_from_{name}'), True)
    torch.serialization.clear_safe_globals()
    yield
    guard_checkpoints()


@functools.cache
def calls():
    """Calls in the package and the tools whose function's name has to do with loading, by file."""
    return [
        (path.relative_to(ROOT).as_posix(), node)
        for folder in ('mmattn', 'tools')
        for path in sorted((ROOT / folder).rglob('*.py'))
        if re.search(r'load\w*\(|pickler|checkpoints?\(|Inferencer\(|load_segmentor', text := path.read_text('utf-8'))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
    ]


def is_set(call, keyword, value):
    return any(k.arg == keyword and getattr(k.value, 'value', None) is value for k in call.keywords)


def test_nothing_else_unpickles():
    """``torch.load`` and ``np.load`` elsewhere say that they create no objects."""
    unsafe = re.compile(
        r'(torch\.(hub|jit|utils\.model_zoo)\.\w*load\w*|\w*pickle\.loads?|(\w+\.)*_?load_checkpoint|load_url|joblib\.load'
        r'|load_state_dict_from_url|(\w+\.)*Unpickler|torch\.load|np\.load|numpy\.load)$'
    )
    found = {
        f'{path}: {ast.unparse(call.func)}'
        for path, call in calls()
        if unsafe.match(ast.unparse(call.func))
        and not is_set(call, 'weights_only', True)
        and not is_set(call, 'allow_pickle', False)
    }
    # the door, and the loading of tools/deployment's own files, of which docs/deployment.md warns
    assert found == {
        'mmattn/engine/checkpoint_files.py: torch.hub.download_url_to_file',
        'mmattn/engine/checkpoint_files.py: torch.load',
    }


def test_all_ways_are_tried_here():
    door = re.compile(r'(\w+\.)?((check|read|guard)_checkpoints?|load_segmentor|\w+Inferencer)$')
    users = {path for path, call in calls() if door.match(ast.unparse(call.func))}
    assert users - {'mmattn/engine/checkpoint_files.py'} == {*WAYS} - {f'tools/{name}.py' for name in OVER_OTHERS}


def program(monkeypatch, path, words):
    monkeypatch.setattr(sys, 'argv', [path, *words])
    monkeypatch.syspath_prepend(str((ROOT / path).parent))
    main = runpy.run_path(str(ROOT / path))['main']
    return main()


# By default, the tools of every task.
OF_OTHER_ROOMS = [name for name in WAYS if name.startswith('tools/') and not re.match(r'tools/(train|test)\.py', name)]
NEEDS = {
    'mmattn/detection/inferencer.py': ['mmcv operators'],
    'tools/dataset_converters/region_features.py': ['mmcv operators'],
    'tools/deployment/export.py': ['onnx', 'onnxscript'],
}


@pytest.mark.parametrize(
    'way',
    [
        pytest.param(way, marks=[requires(*NEEDS.get(way, ())), *([pytest.mark.slow] if way in OF_OTHER_ROOMS else [])])
        for way in WAYS
        if WAYS[way] is not None
    ],
)
def test_a_pickle_that_runs_code_is_refused(way, evil, tmp_path, monkeypatch, capsys):
    from PIL import Image

    for name in ('IMAGE.png', 'MASK.png', 'CLIP/00000.png'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(np.zeros((32, 32), np.uint8)).save(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    call = WAYS[way]
    if callable(call):
        monkeypatch.syspath_prepend(str(ROOT / 'tools'))
        call = functools.partial(call, evil)
    else:
        words = [word.replace('EVIL', str(evil)) for word in re.sub('IMAGE|MASK', r'\g<0>.png', call).split()]
        call = functools.partial(program, monkeypatch, way, words)
    before = {*tmp_path.rglob('*')}
    with pytest.raises((ValueError, SystemExit)) as raised:
        call()
    assert callable(WAYS[way]) or {*tmp_path.rglob('*')} == before
    text = f'{raised.value} {raised.value.__cause__} {capsys.readouterr()}'
    assert re.search(rf'{re.escape(str(evil))} contains \S*Path\S*.*{TRUST}=1', text, re.S), text


# --- in a run


class Part(BaseModule):
    def __init__(self, init_cfg=None):
        super().__init__(init_cfg)
        self.layer = nn.Linear(1, 1)


class Model(BaseModel):
    def __init__(self, init_cfg=None, part=None):
        super().__init__(init_cfg=init_cfg)
        self.part = Part(part)

    def forward(self, inputs, data_samples=None, mode='tensor'):
        return dict(loss=self.part.layer(inputs).sum())


def run_with(options, model=None, work_dir=None):
    data = [dict(inputs=torch.ones(1))] * 2
    hook = dict(type='mmattn.CheckpointHook', by_epoch=False, interval=1)
    runner = Runner(
        Model(**model or {}),
        work_dir or str(Path(options.get('load_from') or '.').parent),
        DataLoader(data, collate_fn=lambda items: dict(inputs=torch.stack([item['inputs'] for item in items]))),
        train_cfg=dict(by_epoch=False, max_iters=1),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
        default_hooks=dict(checkpoint=hook, logger=None, runtime_info=None, sampler_seed=None),
        experiment_name=f'door{torch.rand(()).item()}',
        log_level='ERROR',
        **options,
    )
    runner.train()
    return runner


PRETRAINED = dict(type='Pretrained', checkpoint='EVIL')


@pytest.mark.parametrize(
    ('options', 'model'),
    [
        (dict(resume=True), {}),
        (dict(resume=True, load_from='EVIL'), {}),
        ({}, dict(init_cfg=PRETRAINED)),
        ({}, dict(part=PRETRAINED)),
        ({}, dict(part=dict(PRETRAINED, prefix='part'))),
        ({}, dict(init_cfg=dict(type='Normal', layer='Linear', override=dict(PRETRAINED, name='part')))),
        ({}, dict(part=dict(type='Pretrained', checkpoint='URL'))),
    ],
    ids=['auto-resume', 'resume', 'init_cfg', 'of a part', 'with prefix', 'override', 'URL of a part'],
)
def test_a_run_refuses_it_wherever_it_is_named(options, model, evil, server, tmp_path):
    """``last_checkpoint`` may name another folder."""
    work_dir = tmp_path / 'elsewhere'
    work_dir.mkdir(exist_ok=True)
    if 'resume' in options:
        (work_dir / 'last_checkpoint').write_text(str(evil), encoding='utf-8')

    def fill(value):
        if isinstance(value, dict):
            return {key: fill(item) for key, item in value.items()}
        return {'EVIL': str(evil), 'URL': f'{server}/{evil.name}'}.get(value, value) if value is not True else True

    with pytest.raises(ValueError, match=rf'iter_1\.pth contains \S*Path\S*.*{TRUST}=1'):
        run_with(fill(options), fill(model), str(work_dir))


# --- addresses


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The files of ``tmp_path`` by HTTP, and caches that are empty."""
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'torch'))
    monkeypatch.setenv('MMENGINE_HOME', str(tmp_path / 'mmengine'))

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            requests.append(self.path)

    requests = []
    handler = functools.partial(Handler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler) as httpd:
        threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True).start()
        yield f'http://127.0.0.1:{httpd.server_port}'
        httpd.shutdown()


ADDRESSES = 'local', 'URL', 'torchvision://net', 'modelzoo://net', 'open-mmlab://net', 'openmmlab://file', 'mmcls://net'
ADDRESSES += 's3://bucket/net.pth', 'petrel:s3://bucket/net.pth'


@pytest.fixture
def places(server, tmp_path, monkeypatch):
    """Let mmengine's names lead to a file."""

    def place(path):
        url = f'{server}/{path.name}'
        (tmp_path / 'mmengine').mkdir(exist_ok=True)
        names = dict(net=url, file=str(path))  # names of open-mmlab:// may be files
        (tmp_path / 'mmengine/open_mmlab.json').write_text(json.dumps(names), encoding='utf-8')
        monkeypatch.setattr(checkpoint_files, 'get_torchvision_models', lambda: dict(net=url))
        monkeypatch.setattr(checkpoint_files, 'get_mmcls_models', lambda: dict(net=url))
        backend = types.SimpleNamespace(get=lambda address: path.read_bytes())
        monkeypatch.setattr(checkpoint_files, 'get_file_backend', lambda address, backend_args: backend)
        return dict(local=str(path), URL=url)

    return place


@pytest.mark.parametrize('address', ADDRESSES)
def test_addresses_lead_to_a_file_that_is_checked(address, evil, places, tmp_path):
    """Tried as mmengine loads: by its CheckpointLoader, which every model and Runner uses."""
    guard_checkpoints()
    given = places(evil)
    for read in (check_checkpoint, read_checkpoint, CheckpointLoader.load_checkpoint):
        with pytest.raises(ValueError, match=rf'contains \S*Path\S*, .*{TRUST}=1'):
            read(given.get(address, address))
    weights = {'backbone.w': torch.rand(3), 'head.w': torch.rand(2)}
    torch.save(dict(state_dict=weights), tmp_path / 'good.pth')
    given = places(tmp_path / 'good.pth')
    (tmp_path / 'torch/hub/checkpoints/iter_1.pth').unlink(missing_ok=True)
    loaded = CheckpointLoader.load_checkpoint(given.get(address, address), 'cpu')['state_dict']
    expected = {'w': weights['backbone.w']} if address.startswith('mmcls') else weights
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)


def test_names_and_schemes_that_nobody_knows(places, tmp_path):
    places(tmp_path / 'none.pth')
    for address in ('torchvision://x', 'open-mmlab://x', 'mmcls://x', 'pavi://x', 'ftp://x/y.pth'):
        with pytest.raises(ValueError, match=f'^{address}: '):
            check_checkpoint(address)


def test_a_download_must_have_the_hash_in_its_name(server, tmp_path, capsys):
    """A file is downloaded once, and says so."""
    content = io.BytesIO()
    torch.save(dict(state_dict={}), content)
    digest = hashlib.sha256(content.getvalue()).hexdigest()[:8]
    for name in (f'net-{digest}.pth', 'net-20200604.pth', 'net-abc.pth'):  # a date; too short
        (tmp_path / name).write_bytes(content.getvalue())
        for downloads in (True, False):
            check_checkpoint(f'{server}/{name}')
            assert (f'{server}/{name}' in capsys.readouterr().err) is downloads
    (tmp_path / 'net-0123abcd.pth').write_bytes(content.getvalue())
    with pytest.raises(ValueError, match=r'net-0123abcd\.pth: .*hash'):
        check_checkpoint(f'{server}/net-0123abcd.pth')
    folder = tmp_path / 'torch/hub/checkpoints'
    assert sorted(path.name for path in folder.glob('net*')) == sorted(
        (f'net-{digest}.pth', 'net-20200604.pth', 'net-abc.pth')
    )


def test_of_several_processes_one_downloads(server, tmp_path, monkeypatch):
    """The others wait for it, and find its file."""
    folder = tmp_path / 'torch/hub/checkpoints'

    def flock(file, operation):
        assert (file.name, operation) == (str(folder / '.lock'), checkpoint_files.fcntl.LOCK_EX)
        torch.save(dict(state_dict={}), folder / 'net.pth')  # as another process has while this one waited

    monkeypatch.setattr(checkpoint_files.fcntl, 'flock', flock)
    assert read_checkpoint(f'{server}/net.pth') == dict(state_dict={})  # where there is no such file


# --- honest files


def mmcv_config(**items):
    """A ConfigDict of mmcv 1.x, whose module is gone."""
    module = types.ModuleType('mmcv.utils.config')
    module.ConfigDict = type('ConfigDict', (addict.Dict,), dict(__module__='mmcv.utils.config'))
    sys.modules[module.__name__] = module
    return module.ConfigDict(items)


HONEST = {
    'NumPy scalars': lambda: [np.float32(3), np.float64(2), np.int64(1), np.bool_(True)],
    'NumPy arrays': lambda: [np.arange(3.0), np.array(['road', 'sky']), np.zeros((2, 0), np.uint8)],
    'HistoryBuffer': lambda: HistoryBuffer([1.0, 3.0], [1, 1]),
    'a method of HistoryBuffer': lambda: Attribute(HistoryBuffer, 'mean'),
    'ConfigDict': lambda: ConfigDict(a=dict(b=[1, dict(c=2)])),
    'ConfigDict of mmcv 1.x': lambda: mmcv_config(a=dict(b=1)),
    'Namespace': lambda: argparse.Namespace(lr=0.1),
    'OrderedDict of buffers': lambda: collections.OrderedDict(running_mean=torch.zeros(2)),
}


def plain(value):
    """Lists and dicts in place of their subclasses; of a log, its numbers."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | torch.Tensor):
        return value.dtype, value.shape, value.tolist()
    if isinstance(value, list):
        return [*map(plain, value)]
    if isinstance(value, HistoryBuffer):
        return plain([*value.data, value.mean(), value.min()])
    value = getattr(*value.of) if isinstance(value, Attribute) else value
    return (type(value), value)


@pytest.mark.parametrize('zipped', [True, False], ids=['zip', 'legacy'])
@pytest.mark.parametrize('kind', HONEST)
def test_what_openmmlab_stores_beside_weights_is_loaded(kind, zipped, tmp_path):
    """Also after a load of mmengine, which takes back the types that it allows for one, ours among them."""
    path = tmp_path / 'model.pth'
    state = nn.Linear(1, 1).state_dict()
    content = dict(state_dict=state, meta=dict(found=HONEST[kind]()))
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    for _ in range(2):
        check_checkpoint(path)
        assert plain(read_checkpoint(path)['meta']['found']) == plain(content['meta']['found'])
        load_checkpoint(nn.Linear(1, 1), str(path))
    guard_checkpoints()
    assert torch.load(path, weights_only=True)['state_dict'].keys() == state.keys()


@pytest.mark.parametrize('package', [b'numpy.core', b'numpy._core'])
def test_numbers_and_arrays_of_both_versions_of_numpy_are_loaded(package, tmp_path):
    """NumPy 2 has moved the functions that unpickle them."""
    content = dict(state_dict={}, best=np.float32(3), history=np.arange(3.0))
    rewrite(tmp_path / 'other.pth', content, lambda name, record: re.sub(rb'numpy\._?core', package, record))
    found = read_checkpoint(tmp_path / 'other.pth')
    assert (found['best'], found['history'].tolist()) == (3.0, [0.0, 1.0, 2.0])


def test_weights_alone_are_a_checkpoint(tmp_path):
    """Also where one is named meta."""
    weights = dict(meta=torch.ones(3), bias=torch.ones(2))
    torch.save(weights, tmp_path / 'plain.pth')
    check_checkpoint(tmp_path / 'plain.pth')
    assert read_checkpoint(tmp_path / 'plain.pth').keys() == weights.keys()


def test_weights_larger_than_their_file_are_not_read_through(tmp_path):
    """Four terabytes of zeros, in four bytes; no model has this shape."""
    torch.save(dict(state_dict=dict(w=torch.zeros(1).expand(2**40))), tmp_path / 'model.pth')
    check_checkpoint(tmp_path / 'model.pth')
    assert read_checkpoint(tmp_path / 'model.pth')['state_dict']['w'].shape == (2**40,)


def test_a_trusted_file_is_loaded(tmp_path, monkeypatch):
    torch.save(dict(state_dict={}, meta=Path('a')), tmp_path / 'model.pth')
    monkeypatch.setenv(TRUST, '1')
    assert read_checkpoint(tmp_path / 'model.pth')['meta'] == Path('a')


# --- files that are none, or would take more memory than they have bytes


def rewrite(path, content, change, compression=zipfile.ZIP_STORED):
    """Save a checkpoint, and write its records, by name, again."""
    torch.save(content, path)
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, 'w', compression) as archive:
        for name, record in records.items():
            archive.writestr(name, change(name, record))


def cut(path, length, **options):
    torch.save(dict(state_dict=dict(weight=torch.ones(9))), path, **options)
    path.write_bytes(path.read_bytes()[:-length])


def zip_of_notes(path):
    with zipfile.ZipFile(path, 'w') as archive:
        archive.writestr('notes.txt', 'x')


def tar(path):
    """As torch wrote it before version 0.1.9."""
    with tarfile.open(path, 'w') as archive:
        for name in ('sys_info', 'pickle', 'storages', 'tensors'):
            archive.addfile(tarfile.TarInfo(name))


def compressed(path):
    rewrite(path, dict(state_dict=dict(w=torch.zeros(999))), lambda name, record: record, zipfile.ZIP_DEFLATED)


def shared(path):
    """Eight of nine weights have no bytes of their own."""
    content = dict(state_dict={str(number): torch.zeros(999) for number in range(9)})
    rewrite(path, content, lambda name, record: b'' if re.search('/data/[1-8]$', name) else record)
    with zipfile.ZipFile(path, 'a') as archive:
        first, *others = (record for record in archive.infolist() if '/data/' in record.filename)
        for other in others:
            other.header_offset, other.file_size, other.compress_size = first.header_offset, 3996, 3996
        archive.comment = b''  # the directory is written anew


NONE = {
    'empty': lambda path: path.touch(),
    'text': lambda path: path.write_text('not yet trained', encoding='utf-8'),
    'cut': lambda path: cut(path, 100),
    'legacy, cut': lambda path: cut(path, 4, _use_new_zipfile_serialization=False),  # the unpickler finds out
    'zip': zip_of_notes,
    'None': lambda path: torch.save(None, path),
    'list': lambda path: torch.save([1], path),
    'list of weights': lambda path: torch.save(dict(state_dict=[1]), path),
    'program': lambda path: torch.jit.script(nn.Linear(1, 1)).save(path),
    'protocol': lambda path: torch.save(dict(state_dict={}), path, pickle_protocol=4),
    'tar': tar,
    'compressed': compressed,
    'huge pickle': lambda path: torch.save(dict(state_dict={}, meta=['a' * 2**13] * 2), path),
    'shared': shared,
}


@pytest.mark.filterwarnings('ignore')  # of TorchScript
@pytest.mark.parametrize('kind', NONE)
def test_what_is_no_checkpoint_is_named(kind, tmp_path, monkeypatch):
    """And nobody is told to trust it: it holds no object."""
    monkeypatch.setattr(checkpoint_files, 'LARGEST_PICKLE', 2**12)
    NONE[kind](tmp_path / 'model.pth')
    for read in (check_checkpoint, read_checkpoint):
        with pytest.raises(ValueError, match=f'^{re.escape(str(tmp_path))}/model\\.pth ') as caught:
            read(str(tmp_path / 'model.pth'))
        assert 'WEIGHTS_ONLY' not in str(caught.value)
        assert 'set to `False`' not in str(caught.value)
    if kind in ('compressed', 'huge pickle', 'shared'):
        with pytest.raises(ValueError, match=r'model\.pth'):
            CheckpointLoader.load_checkpoint(str(tmp_path / 'model.pth'))


class Attribute:
    """Its pickle reads an attribute: by ``getattr``, which reaches every function of Python."""

    def __init__(self, *of):
        self.of = of

    def __reduce__(self):
        return getattr, self.of


OBJECTS = {
    'code': (lambda ran: Code(ran), r'\S*Path'),
    'a private method': (lambda _: Attribute(HistoryBuffer, '__init__'), r"getattr\('__init__'\)"),
    'a method of NumPy': (lambda _: Attribute(np.ndarray, 'tofile'), r"getattr\('tofile'\)"),
    'a method of an instance': (lambda _: Attribute(HistoryBuffer([1.0], [1]), 'mean'), r"getattr\('mean'\)"),
}


@pytest.mark.parametrize('zipped', [True, False], ids=['zip', 'legacy'])
@pytest.mark.parametrize('kind', OBJECTS)
@pytest.mark.parametrize('in_parts', [False, True])
def test_objects_are_refused_and_named(kind, zipped, in_parts, ran, tmp_path, monkeypatch):
    """Also in one part of many, as DeepSpeed has them. A user may trust them; even then they are not run."""
    make, name = OBJECTS[kind]
    path, content = tmp_path / 'evil.pth', dict(state_dict=nn.Linear(1, 1).state_dict())
    if in_parts:
        path = tmp_path / 'parts/evil.pt'
        path.parent.mkdir()
        torch.save(content | dict(hub=HistoryBuffer([1.0], [1])), path.with_name('good.pt'))
        check_checkpoint(path.parent)
    torch.save(content | dict(meta=make(ran)), path, _use_new_zipfile_serialization=zipped)
    address = path.parent if in_parts else path
    for read in (check_checkpoint,) if in_parts else (check_checkpoint, read_checkpoint):
        with pytest.raises(ValueError, match=rf'^{re.escape(str(path))} contains {name}.*{TRUST}=1'):
            read(address)
    monkeypatch.setenv(TRUST, '1')
    check_checkpoint(address)


@pytest.mark.parametrize(
    ('error', 'kind', 'said'),
    [
        (RuntimeError('one line\nanother'), ValueError, r'model\.pth .*\bone line\)$'),
        (AssertionError(), ValueError, r'model\.pth .*\bAssertionError\)$'),
        (torch.cuda.OutOfMemoryError('full'), torch.cuda.OutOfMemoryError, '^full$'),  # the file is not damaged
    ],
)
def test_a_file_is_named_with_the_first_line_of_any_error(error, kind, said, tmp_path, monkeypatch):
    path = tmp_path / 'model.pth'
    torch.save(dict(state_dict={}), path)

    def load(*_, **__):
        raise error

    monkeypatch.setattr(torch, 'load', load)
    for call in (check_checkpoint, read_checkpoint):
        with pytest.raises(kind, match=said) as caught:
            call(path)
        assert error in (caught.value, caught.value.__cause__)


def test_what_is_no_file_is_named(tmp_path):
    for name, error in (('absent.pth', FileNotFoundError), ('', IsADirectoryError)):
        for call in (check_checkpoint, read_checkpoint):
            with pytest.raises(error) as caught:
                call(tmp_path / name)
            assert caught.value.filename == str(tmp_path / name)
