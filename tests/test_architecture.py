"""A dependency runs one way: read from the imports of the sources, and seen in processes that import one folder."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / 'mmattn'
# From the ground up. A folder imports only folders of the floors below; folders of one floor do not import each other.
FLOORS = (
    {'_compat', '__init__'},
    {'utils', 'registry'},
    {'ops', 'data_check'},
    {'layers', 'engine', 'visualization'},
    {'segmentation', 'detection', 'video', 'language'},
    {'deployment', 'reproduction'},
)
VISION = ('layers', 'segmentation', 'segmentation.face_parsing', 'detection', 'video', 'engine', 'visualization')


def imports(path):
    """Yield the folders of mmattn that a file imports, wherever the statement stands."""
    package = ('mmattn', *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = [*package[: len(package) - node.level + 1]] if node.level else []
            module += [node.module] if node.module else []
            names = ['.'.join([*module, alias.name]) for alias in node.names]
        else:
            continue
        for name in names:
            first, *rest = name.split('.')
            if first == 'mmattn':
                yield rest[0] if rest and rest[0] in {room for floor in FLOORS for room in floor} else '__init__'


def test_no_import_runs_upwards_or_across():
    floor_of = {room: i for i, floor in enumerate(FLOORS) for room in floor}
    wrong = []
    for path in sorted(PACKAGE.rglob('*.py')):
        if '.mim' in path.parts:
            continue
        room = path.relative_to(PACKAGE).with_suffix('').parts[0]
        wrong += [
            f'{path.relative_to(PACKAGE)} imports {other}'
            for other in set(imports(path)) - {room}
            if floor_of[other] >= floor_of[room]
        ]
    assert not wrong


def test_only_the_laboratory_above_it_imports_language():
    importing = {
        path.relative_to(PACKAGE).parts[0]
        for path in PACKAGE.rglob('*.py')
        if '.mim' not in path.parts and 'language' in imports(path)
    }
    assert importing - {'language'} <= {'reproduction'}


def test_a_relative_import_is_read(tmp_path, monkeypatch):
    """The two tests above would see one, too."""
    monkeypatch.setattr(f'{__name__}.PACKAGE', tmp_path)
    (tmp_path / 'layers').mkdir()
    path = tmp_path / 'layers/a.py'
    path.write_text(
        'def f():\n    from ..language.text import vocabulary\n    from .. import video\n    import mmattn.ops\n'
    )
    assert sorted(imports(path)) == ['language', 'ops', 'video']


def test_vision_imports_no_module_of_language(run_python):
    code = f"""
import sys
from importlib import import_module
for name in {VISION}:
    import_module('mmattn.' + name)
from mmengine.registry import HOOKS, MODELS
for name in ('BiCCHead', 'BilateralNonLocal2d', 'SST'):
    assert MODELS.get('mmattn.' + name)
assert HOOKS.get('mmattn.CheckpointHook')
print([name for name in sys.modules if name.startswith('mmattn.language')])
"""
    assert run_python(code).splitlines()[-1] == '[]'


def test_layers_for_sentences_and_regions_need_no_mmcv(run_python):
    code = """
import sys
sys.modules['mmcv'] = None  # importing it raises an ImportError
import mmattn.language.layers as layers
print([getattr(layers, name).__name__ for name in layers.__all__] == layers.__all__)
"""
    assert run_python(code).splitlines()[-1] == 'True'
