"""tests/PROOFS.md names tests that exist, and has a row for every component, operator and converter.

It reads the sources alone: nothing is collected or imported.
"""

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
PAGE = (TESTS / 'PROOFS.md').read_text(encoding='utf-8')
# The first cell of a component is its name, that of a property or a kind of run is text.
ROWS = dict(re.findall(r'^\| `(\w+)` \|(.*)', PAGE, re.MULTILINE))


@cache
def tree(path):
    return ast.parse(path.read_text(encoding='utf-8'))


def components():
    """Classes and functions with ``@….register_module()``."""
    for path in (ROOT / 'mmattn').rglob('*.py'):
        for node in tree(path).body:
            if any('register_module' in ast.dump(decorator) for decorator in getattr(node, 'decorator_list', ())):
                yield node.name


def operators():
    """What ``mmattn.ops`` lists: functions of its own files, and those of language."""
    module = tree(ROOT / 'mmattn/ops/__init__.py')
    for node in ast.walk(module):
        if isinstance(node, ast.Dict):  # the names that are loaded from language
            yield from (name for value in node.values for name in ast.literal_eval(value).split())
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], 'id', '') == '__all__':
            yield from (name.value for name in node.value.elts if isinstance(name, ast.Constant))


def converters():
    return (path.stem for path in (ROOT / 'tools/dataset_converters').glob('*.py'))


def test_the_tests_that_the_page_names_exist():
    named = set(re.findall(r'`([\w/]+\.py)::(\w+)`', PAGE))
    assert len(named) > 200
    files = {file: TESTS / file for file, _ in named}
    defined = {
        (file, node.name)
        for file, path in files.items()
        if path.exists()
        for node in tree(path).body
        if isinstance(node, ast.FunctionDef)
    }
    assert sorted(named - defined) == []


def test_what_there_is_has_a_row_with_a_test():
    there = {*components(), *operators(), *converters()}
    assert {'BiCCHead', 'pad_collate', 'global_attention', 'bilinear_logits', 'camvid'} <= there
    assert sorted(there ^ {*ROWS}) == []
    assert [name for name, row in ROWS.items() if '::' not in row] == []
