"""mmattn/registry.py as a config meets it: in processes that never imported mmattn, with packages missing or broken."""

import json
import os
import shutil
from pathlib import Path

import pytest
from mmengine.registry import DefaultScope, init_default_scope

import mmattn
from mmattn.registry import FOLDERS, find_folder

PACKAGE = Path(mmattn.__file__).parent
# The registry of each name, and the packages that it needs.
RECORDED = Path(__file__).with_name('golden') / 'registered.txt'
REGISTRY = {name: registry for registry, name in map(str.split, RECORDED.read_text(encoding='utf-8').splitlines())}
NEEDS = {name: FOLDERS[folder] for name in REGISTRY if (folder := find_folder(name.removeprefix('mmattn.')))}
ENGINE, MMCV, HEADS, DETECTION = (
    [name for name, needs in NEEDS.items() if needs == packages]
    for packages in ((), ('mmcv',), ('mmcv', 'mmseg'), ('mmcv', 'mmdet'))
)

HEAD = {'type': 'mmattn.BiCCHead', 'in_channels': 8, 'channels': 8, 'num_classes': 2, 'window_size': 3}
LAYER = {'type': 'mmattn.BilateralNonLocal2d', 'in_channels': 8, 'window_size': 3}

# What a user's process does, and the module of what comes out.
FRESH = {
    "from mmengine.registry import MODELS, init_default_scope; init_default_scope('mmseg'); "
    f'found = type(MODELS.build({HEAD}))': 'mmattn.segmentation.bi_cc_head',
    "from mmengine.registry import init_default_scope; from mmseg.registry import MODELS; init_default_scope('mmseg'); "
    f'found = type(MODELS.build({HEAD}))': 'mmattn.segmentation.bi_cc_head',
    "from mmengine.registry import MODELS; assert MODELS.get('mmattn.BilateralNonLocal2d'); "
    f'found = type(MODELS.build({LAYER}))': 'mmattn.layers.bilateral_non_local',
    'from mmengine.registry import OPTIM_WRAPPERS; '
    "found = OPTIM_WRAPPERS.get('mmattn.CPUAmpOptimWrapper')": 'mmattn.engine',
}

# Hides the packages, looks up every name twice and prints {name: the error, or ''}.
ASK = """
import json, sys
hidden, names = {hidden!r}, {names!r}
sys.modules.update(dict.fromkeys(hidden))
import mmengine.registry
said = {{}}
for name, registry in names * 2:
    try:
        found = getattr(mmengine.registry, registry).get(name)
        now = '' if found.__name__ == name.removeprefix('mmattn.') else f'found {{found}}'
    except ImportError as error:
        now = f'ImportError: {{error}}'
    assert said.setdefault(name, now) == now, (said[name], now)
print(json.dumps(said))
"""

# Prints the names in every registry of scope mmattn: after listing the registries (`listed`), which imports what the
# folders' `__init__` name, and after importing every module of the package (`imported`).
REGISTERED = """
import json, pkgutil
from importlib import import_module
from importlib.util import find_spec
import mmattn, mmattn.registry, mmcv, mmengine.registry, mmseg.models
from mmengine.registry import Registry

children = [root.children['mmattn'] for root in vars(mmengine.registry).values()
            if isinstance(root, Registry) and 'mmattn' in root.children]

def names():
    return sorted(f'mmattn.{name}' for child in children for name in child.module_dict)

assert not names()
children[0].import_from_location()
listed = names()
for module in pkgutil.walk_packages(mmattn.__path__, 'mmattn.'):
    if find_spec('triton') or not module.name.startswith('mmattn.ops.triton.'):
        import_module(module.name)
print(json.dumps(dict(listed=listed, imported=names())))
"""


@pytest.fixture
def mmengine_path(request):
    """PYTHONPATH for the installed mmengine, or for the original one if the test has its parameter."""
    paths = [str(PACKAGE.parent)]
    if getattr(request, 'param', '') == 'original':
        paths.insert(0, str(request.getfixturevalue('original_mmengine')))
    return os.pathsep.join(paths)


ORIGINAL = pytest.param('original', marks=pytest.mark.slow)


@pytest.fixture
def ask(run_python):
    def ask(names, hidden=(), **env):
        said = run_python(ASK.format(names=[(name, REGISTRY[name]) for name in names], hidden=hidden), **env)
        return json.loads(said.splitlines()[-1])  # mmseg.datasets prints

    return ask


@pytest.mark.one_case
@pytest.mark.parametrize(
    ('code', 'module', 'mmengine_path'),
    [
        *(pytest.param(*case, '', id=name) for case, name in zip(FRESH.items(), ('runner', 'mmseg', 'layer', 'optim'))),
        pytest.param(*next(iter(FRESH.items())), 'original', marks=pytest.mark.slow, id='runner-original'),
    ],
    indirect=['mmengine_path'],
)
def test_a_name_is_enough(run_python, mmengine_path, code, module):
    code = (
        f"import sys, mmengine; {code}; assert 'mmattn.registry' in sys.modules; "
        'print(mmengine.__version__, found.__module__)'
    )
    said = run_python(code, PYTHONPATH=mmengine_path)
    version, found = said.splitlines()[-1].split()  # mmcv warns that its operators are not there
    assert found == module or found.startswith(f'{module}.')
    assert 'mmengine-' not in mmengine_path or f'mmengine-{version}' in mmengine_path


@pytest.mark.one_case
@pytest.mark.parametrize('hidden', [('mmcv',), ('mmcv', 'mmengine')], ids='-'.join)
def test_a_layer_without_mmcv_says_what_to_install(run_python, hidden):
    """In a program of plain PyTorch, which imports no registry."""
    run_python(f"""
import sys
sys.modules.update(dict.fromkeys({hidden!r}))
import mmattn.ops
try:
    from mmattn.layers import LocalBilateralAttention
except ImportError as error:
    assert 'mmattn.layers.LocalBilateralAttention' in str(error), error
    assert 'pip install onedl-mmcv' in str(error), error
else:
    raise AssertionError
""")


HIDDEN = [
    (('mmdet',), {'mmdet': DETECTION}),
    (('mmseg', 'mmdet'), {'mmseg': HEADS}),
    (('mmcv',), {'mmcv': MMCV + HEADS}),
    (('mmcv', 'mmseg', 'mmdet'), {'mmcv': MMCV, 'mmcv and mmseg': HEADS}),
]


@pytest.mark.one_case
@pytest.mark.parametrize(
    ('hidden', 'missing', 'mmengine_path'),
    [
        *(pytest.param(*case, '', id='-'.join(case[0])) for case in HIDDEN),
        pytest.param(*HIDDEN[-1], 'original', marks=pytest.mark.slow, id='original'),
    ],
    indirect=['mmengine_path'],
)
def test_without_a_package_only_its_components_are_missing(ask, mmengine_path, hidden, missing):
    """The error names the package and what installs it, in either family."""
    names = ENGINE + MMCV + HEADS + (DETECTION if hidden == ('mmdet',) else [])
    said = ask(names, hidden, PYTHONPATH=mmengine_path)
    expected = {name: packages for packages, those in missing.items() for name in those}
    assert {name for name in names if said[name]} == expected.keys()
    for name, packages in expected.items():
        package = packages.split()[0].replace('mmseg', 'mmsegmentation').replace('mmdet', 'mmdetection')
        for part in ('ImportError: ', name, f' {packages},', f'pip install onedl-{package}', 'pip install mm'):
            assert part in said[name]


@pytest.mark.parametrize('scopes', [['mmseg'], ['mmseg', 'mmattn'], ['mmattn'], ['mmengine'], []])
def test_a_name_without_a_scope_is_that_of_the_configs_default_scope(scopes):
    """Or of mmseg, where the only scopes are ours and mmengine's. A name with a scope is looked up there."""
    from mmcv.transforms import LoadAnnotations as OfMMCV
    from mmseg.datasets.transforms import LoadAnnotations as OfMMSeg

    from mmattn.registry import TRANSFORMS

    DefaultScope._instance_dict.clear()
    for scope in scopes:
        init_default_scope(scope)
    assert TRANSFORMS.get('LoadAnnotations') is OfMMSeg
    assert TRANSFORMS.get('mmseg.LoadAnnotations') is OfMMSeg
    assert TRANSFORMS.get('mmengine.LoadAnnotations') is OfMMCV
    assert TRANSFORMS.get('mmattn.LoadChannels') is TRANSFORMS.get('LoadChannels')
    assert TRANSFORMS.get('mmattn.LoadChannels').__module__ == 'mmattn.segmentation.load_channels'


@pytest.mark.parametrize(('scope', 'names'), {'mmseg': ['mmattn.Gone'], 'mmattn': ['mmattn.Gone', 'Gone']}.items())
def test_a_former_name_tells_what_to_do(monkeypatch, scope, names):
    """A name without ours in the scope mmattn, too. One that the default scope has is found there, as before."""
    from mmengine.registry import TRANSFORMS
    from mmseg.datasets.transforms import LoadAnnotations

    from mmattn import registry

    for name in ('Gone', 'LoadAnnotations'):
        monkeypatch.setitem(registry.FORMER_NAMES, name, 'write mmseg.Resize')
    DefaultScope._instance_dict.clear()
    init_default_scope(scope)
    for name in names:
        with pytest.raises(KeyError, match=r'mmattn\.Gone.* write mmseg\.Resize'):
            TRANSFORMS.build(dict(type=name))
    assert registry.TRANSFORMS.get('LoadAnnotations') is LoadAnnotations
    assert registry.TRANSFORMS.get('mmattn.NeverThere') is None


@pytest.mark.slow
def test_a_broken_folder_tells_its_own_cause(ask, mmengine_path, tmp_path):
    shutil.copytree(PACKAGE, tmp_path / 'mmattn', ignore=shutil.ignore_patterns('.mim', '__pycache__'))
    broken = tmp_path / 'mmattn' / 'segmentation' / '__init__.py'
    broken.write_text(f"raise ImportError('cannot import name cause_xyz')\n{broken.read_text()}")
    said = ask(ENGINE + MMCV + HEADS, PYTHONPATH=f'{tmp_path}{os.pathsep}{mmengine_path}')
    assert {said[name] for name in ENGINE + MMCV} == {''}
    assert {said[name] for name in HEADS} == {'ImportError: cannot import name cause_xyz'}


@pytest.mark.slow
def test_a_name_imports_its_own_folder_alone(run_python):
    """mmseg is imported first: one of its modules imports mmdet where that is installed."""
    code = """
import sys
import mmseg.models
from mmengine.registry import MODELS
before = set(sys.modules)
MODELS.get('mmattn.BiCCHead')
loaded = sys.modules.keys() - before
others = ('mmattn.video', 'mmattn.detection', 'mmattn.visualization', 'mmdet', 'mmattn.language')
others += ('h5py', 'sacremoses', 'subword_nmt', 'sacrebleu', 'pycocoevalcap')
print('mmattn.segmentation.bi_cc_head' in loaded, [name for name in loaded if name.startswith(others)])
"""
    assert run_python(code).splitlines()[-1] == 'True []'


@pytest.mark.slow
@pytest.mark.parametrize('mmengine_path', ['', ORIGINAL], indirect=True)
def test_a_config_inherits_ours_by_package(run_python, mmengine_path, tmp_path):
    """mmengine builds it in the scope mmattn, where mmseg's names, as the config's default scope, still count."""
    user = tmp_path / 'user.py'
    base = 'mmattn::bi_cc/bi-cc_r50-d8_4xb2-80k_cityscapes-769x769.py'
    user.write_text(f'_base_ = {base!r}\nmodel = dict(pretrained=None)\n')
    code = f"""
import mmattn.registry
from mmengine.config import Config
from mmengine.registry import HOOKS, METRICS, MODELS, TRANSFORMS, VISUALIZERS, init_default_scope
cfg = Config.fromfile({str(user)!r})
init_default_scope(cfg.default_scope)
model = MODELS.build(cfg.model)
assert cfg.model._scope_ == 'mmattn'
built = [model, model.decode_head, METRICS.build(cfg.val_evaluator), VISUALIZERS.build(cfg.visualizer),
         HOOKS.build(cfg.default_hooks.visualization), TRANSFORMS.build(dict(cfg.test_pipeline[2], _scope_='mmattn'))]
print('built in', *(type(x).__module__.partition('.')[0] for x in built))
"""
    assert 'built in mmseg mmattn mmseg mmseg mmseg mmseg\n' in run_python(code, PYTHONPATH=mmengine_path)


@pytest.mark.slow
def test_folders_name_all_that_is_registered(run_python):
    said = json.loads(run_python(REGISTERED).splitlines()[-1])  # mmseg.datasets prints
    unlisted, gone = {*said['imported']} - {*said['listed']}, {*said['listed']} - {*said['imported']}
    assert not unlisted | gone, f'__init__.py of the folder: add {sorted(unlisted)}, remove {sorted(gone)}'
    assert said['listed'] == said['imported']
    assert {*REGISTRY} <= {*said['listed']}
    assert NEEDS.keys() == REGISTRY.keys()
    assert NEEDS.keys() == {*ENGINE, *MMCV, *HEADS, *DETECTION}


@pytest.mark.slow
def test_subpackages_by_attribute(run_python):
    assert run_python('import mmattn; print(mmattn.ops.global_attention.__name__)') == 'global_attention\n'
    with pytest.raises(AttributeError, match=f'BiCCHead.* {", ".join(mmattn.SUBPACKAGES)}'):
        mmattn.BiCCHead  # noqa: B018
    folders = {path.parent.name for path in Path(mmattn.__file__).parent.glob('*/__init__.py')}
    assert {*mmattn.SUBPACKAGES} == {*folders, 'registry'}
