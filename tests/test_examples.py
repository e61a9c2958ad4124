"""The usage examples of docstrings: each public class and operator has one, and it runs as printed."""

import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch
from mmengine.logging import MMLogger
from mmengine.registry import DefaultScope

import mmattn.ops
from mmattn import registry
from mmattn.ops import dispatch as operators

PACKAGE = Path(mmattn.ops.__file__).parents[1]
EXAMPLE = re.compile(r'^\s*>>> ', re.MULTILINE)
MODULES = [
    '.'.join(path.relative_to(PACKAGE.parent).with_suffix('').parts)
    for path in sorted(PACKAGE.rglob('*.py'))
    if '.mim' not in path.parts and EXAMPLE.search(path.read_text(encoding='utf-8'))
]


@pytest.mark.parametrize('name', MODULES)
def test_examples_run_as_printed(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name == 'mmattn.ops.operator':  # the operator that it declares is gone after it
        monkeypatch.setattr(operators, 'OPERATORS', dict(operators.OPERATORS))
    torch.manual_seed(0)
    module = importlib.import_module(name)
    finder = doctest.DocTestFinder()
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    MMLogger.get_current_instance()  # the first use binds its stream: not that of an example
    for test in finder.find(module, name, globs={**vars(mmattn.ops), **vars(module), 'torch': torch}):
        with DefaultScope.overwrite_default_scope('mmattn'):  # no example depends on the scope that another one has set
            runner.run(test, out=report.append)
    assert runner.failures == 0, ''.join(report)
    assert runner.tries > 0


def components():
    """Yield the names and classes of mmattn that the registries hold, without those of tools/reproduce.py."""
    registry.MODELS.import_from_location()
    for each in vars(registry).values():
        if isinstance(each, registry.FolderRegistry):
            yield from (item for item in each.module_dict.items() if item[1].__module__.startswith('mmattn.'))


def test_every_component_and_operator_has_an_example():
    functions = [(name, getattr(mmattn.ops, name)) for name in mmattn.ops.__all__]
    public = dict([*components(), *((name, what) for name, what in functions if callable(what))])
    without = [f'{x.__module__}: {name}' for name, x in public.items() if not EXAMPLE.search(inspect.getdoc(x) or '')]
    assert without == [], 'add an example to the docstring'
