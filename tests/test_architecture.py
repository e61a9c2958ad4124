"""What is read from the sources: imports run one way and in no circle, and defaults are as docstrings say."""

import ast
import re
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / 'mmattn'
# From the ground up. A folder imports only folders of the floors below; folders of one floor do not import each other.
FLOORS = (
    {'_compat', '__init__', 'former_names'},
    {'utils'},
    {'registry'},
    {'ops'},
    {'layers', 'engine', 'visualization'},
    {'segmentation', 'detection', 'video', 'language'},
    {'deployment'},
    {'check'},
)

# Lines of code in each folder, without docstrings, comments and blanks, to the next hundred. Whoever changes a number
# says in the message of the commit why the room has grown.
ROOMS = {
    'mmattn': 200,
    'mmattn/check': 600,
    'mmattn/deployment': 300,
    'mmattn/detection': 200,
    'mmattn/engine': 1500,
    'mmattn/language': 300,
    'mmattn/language/captioning': 1200,
    'mmattn/language/grounding': 600,
    'mmattn/language/layers': 1600,
    'mmattn/language/models': 600,
    'mmattn/language/regions': 600,
    'mmattn/language/text': 500,
    'mmattn/language/translation': 600,
    'mmattn/language/vqa': 1400,
    'mmattn/layers': 1300,
    'mmattn/ops': 3100,
    'mmattn/segmentation': 900,
    'mmattn/utils': 1300,
    'mmattn/video': 2400,
    'mmattn/visualization': 600,
    'tests': 3100,
    'tests/check': 1100,
    'tests/contracts': 1500,
    'tests/dataset_converters': 4100,
    'tests/deployment': 900,
    'tests/detection': 200,
    'tests/engine': 3600,
    'tests/frozen': 800,
    'tests/fuzz': 900,
    'tests/golden': 400,
    'tests/language': 1300,
    'tests/language/captioning': 1200,
    'tests/language/grounding': 500,
    'tests/language/layers': 1800,
    'tests/language/models': 600,
    'tests/language/regions': 700,
    'tests/language/text': 500,
    'tests/language/translation': 800,
    'tests/language/vqa': 1500,
    'tests/layers': 2400,
    'tests/mutations': 400,
    'tests/ops': 4600,
    'tests/reproduction': 2100,
    'tests/segmentation': 1300,
    'tests/support': 1400,
    'tests/utils': 1400,
    'tests/video': 3100,
    'tests/visualization': 1000,
    'tools': 1100,
    'tools/analysis_tools': 400,
    'tools/benchmarks': 1000,
    'tools/dataset_converters': 4500,
    'tools/deployment': 300,
    'tools/environment': 200,
    'tools/misc': 400,
    'tools/reproduction': 2100,
    'tools/visualization': 200,
}


def sources():
    return sorted(path for path in PACKAGE.rglob('*.py') if '.mim' not in path.parts)


@cache
def tree(path):
    return ast.parse(path.read_text(encoding='utf-8'))


def names_imported(path):
    """Yield what a file imports, as full names such as 'mmattn.ops.chunks.split', wherever the statement stands."""
    package = ('mmattn', *path.relative_to(PACKAGE).parts[:-1]) if path.is_relative_to(PACKAGE) else ()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = [*package[: len(package) - node.level + 1]] if node.level else []
            module += [node.module] if node.module else []
            yield from ('.'.join([*module, alias.name]) for alias in node.names)


def imports(path):
    """Yield the folders of mmattn that a file imports."""
    rooms = {room for floor in FLOORS for room in floor}
    for name in names_imported(path):
        first, *rest = name.split('.')
        if first == 'mmattn':
            yield rest[0] if rest and rest[0] in rooms else '__init__'


def module_graph():
    """Return the modules that each module of mmattn imports; the names that an ``__init__`` loads late do not count."""
    modules = {}
    for path in sources():
        parts = path.relative_to(PACKAGE).with_suffix('').parts
        modules['.'.join(['mmattn', *(parts[:-1] if parts[-1] == '__init__' else parts)])] = path
    graph = {}
    for module, path in modules.items():
        prefixes = ({name, name.rpartition('.')[0]} & modules.keys() for name in names_imported(path))
        graph[module] = {max(names, key=len) for names in prefixes if names} - {module}
    return graph


def programs():
    """What is run by its name, ``python -m mmattn.utils.check_gpu``."""
    return {path for path in sources() if "if __name__ == '__main__':" in path.read_text(encoding='utf-8')}


def test_no_import_runs_upwards_or_across():
    """Programs may import all, and nothing imports them."""
    floor_of = {room: i for i, floor in enumerate(FLOORS) for room in floor}
    wrong = []
    modules = {'.'.join(['mmattn', *path.relative_to(PACKAGE).with_suffix('').parts]) for path in programs()}
    assert not modules & {module for imported in module_graph().values() for module in imported}
    for path in {*sources()} - programs():
        room = path.relative_to(PACKAGE).with_suffix('').parts[0]
        wrong += [
            f'{path.relative_to(PACKAGE)} imports {other}'
            for other in set(imports(path)) - {room}
            if floor_of[other] >= floor_of[room]
        ]
    assert not wrong


def test_only_language_imports_language():
    importing = {path.relative_to(PACKAGE).parts[0] for path in sources() if 'language' in imports(path)}
    assert importing == {'language'}


def test_tasks_of_language_do_not_import_each_other():
    tasks = 'captioning', 'grounding', 'translation', 'vqa'
    wrong = [
        f'{path.relative_to(PACKAGE)} imports {name}'
        for task in tasks
        for path in sorted((PACKAGE / 'language' / task).rglob('*.py'))
        for name in names_imported(path)
        for other in set(tasks) - {task}
        if f'{name}.'.startswith(f'mmattn.language.{other}.')
    ]
    assert not wrong


def test_converters_are_commands_and_import_none():
    commands = {path.stem: path for path in (PACKAGE.parent / 'tools/dataset_converters').glob('*.py')}
    assert commands
    for path in commands.values():
        assert "if __name__ == '__main__':" in path.read_text(encoding='utf-8'), path
        assert not {name.partition('.')[0] for name in names_imported(path)} & commands.keys(), path


def test_nothing_that_is_installed_imports_tests():
    """The benchmarks, which a checkout alone has, call operators as the tests do."""
    tools = (PACKAGE.parent / 'tools').rglob('*.py')
    for path in (*sources(), *(path for path in tools if path.parent.name != 'benchmarks')):
        assert not [name for name in names_imported(path) if name.partition('.')[0] == 'tests'], path


def test_no_modules_import_each_other():
    """Neither directly nor through others, nor in a function."""
    TopologicalSorter(module_graph()).prepare()  # the error names a circle


def lines_of_code(path):
    docstrings = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            docstrings.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = enumerate(path.read_text(encoding='utf-8').splitlines(), 1)
    return sum(i not in docstrings and not line.lstrip().startswith('#') and bool(line.strip()) for i, line in lines)


def test_rooms_have_the_sizes_of_the_table():
    found = Counter()
    for path in (*sources(), *(path for name in ('tools', 'tests') for path in (PACKAGE.parent / name).rglob('*.py'))):
        folders = path.relative_to(PACKAGE.parent).parts[:-1]
        found['/'.join(folders[: 3 if 'language' in folders else 2])] += lines_of_code(path)
    assert {room: -(-lines // 100) * 100 for room, lines in found.items()} == ROOMS


def literal(text):
    """Read the literal with which a text begins, such as (8, 16) in '(8, 16), as in the paper'; None if none does."""
    start = re.match(r"""('[^']*'|\([^)]*\)|\S+?)[.,:;]*(?=\s|$)""", text)
    try:
        return ast.literal_eval(start.group(1))
    except (SyntaxError, ValueError):
        return None


def defaults(node, classes):
    """Return the default of each argument of a function, or of a class and its bases, as an expression."""
    found = {}
    if isinstance(node, ast.FunctionDef):
        names = [argument.arg for argument in node.args.posonlyargs + node.args.args]
        found |= dict(zip(names[::-1], node.args.defaults[::-1]))
        found |= {name.arg: value for name, value in zip(node.args.kwonlyargs, node.args.kw_defaults) if value}
        return found
    for base in map(ast.unparse, node.bases):
        if base in classes and base != node.name:
            found |= defaults(classes[base], classes)
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and part.value:
            found[part.target.id] = part.value
        elif isinstance(part, ast.FunctionDef) and part.name == '__init__':
            found |= defaults(part, classes)
    return found


def said_defaults(docstring):
    """Yield each argument of which a docstring says the default, and what it says."""
    pattern = r'^    (\w+(?:, \w+)*) \((?:(?!^    \w).)*?\sDefaults?\s+to\s+(.*?)(?=^    \w|^\w|\Z)'
    for names, said in re.findall(pattern, docstring, re.MULTILINE | re.DOTALL):
        names = names.split(', ')
        if len(names) == 1:
            yield names[0], said
        else:  # one default for all, or one for each
            values = re.split(r', | and ', re.split(r'\.(?=\s|$)', said)[0])
            pairs = zip(names, values if len(values) == len(names) else values * len(names))
            yield from (pair for pair in pairs if literal(pair[1]) is not None)
    if ' defaults to ' in docstring:  # ``a`` defaults to 1, ``b`` and ``c`` to 0.5
        for *names, value in re.findall(
            r"(?<!['t]s )``(\w+)``(?: and ``(\w+)``)?\s(?:defaults )?to (\d\S*)", docstring
        ):
            yield from zip(names, [value] * 2)


def test_defaults_are_as_the_docstrings_say():
    """Where both are literals: some say in words what None means."""
    named = [node for path in sources() for node in tree(path).body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    classes = {node.name: node for node in named if isinstance(node, ast.ClassDef)}
    named += [part for node in classes.values() for part in node.body if isinstance(part, ast.FunctionDef)]
    compared, wrong = 0, []
    for node in named:
        entries = [*said_defaults(ast.get_docstring(node) or '')]
        values = defaults(node, classes) if entries else {}
        for name, said in entries:
            value = values.get(name)
            plain = isinstance(value, ast.Constant | ast.UnaryOp | ast.Tuple) and '((' not in ast.unparse(value)
            if plain and ast.unparse(value) not in ('None', '()'):
                compared += 1
                documented, value = literal(said), ast.literal_eval(value)
                if documented != value or isinstance(documented, bool) != isinstance(value, bool):
                    wrong.append(f'{node.name}: {name}={value!r}, {said!r}')
    assert not wrong
    assert compared > 320


def call_defaults(node, classes):
    """Return the default of each argument that the docstring of a class, or of its bases, lists for every call."""
    found = {}
    for base in map(ast.unparse, getattr(node, 'bases', ())):
        found |= call_defaults(classes[base], classes) if base in classes else {}
    pattern = r'^\* (\w+) \((?:(?!^\* ).)*? Defaults to (\w+)\.$'
    entries = re.findall(pattern, ast.get_docstring(node) or '', re.MULTILINE | re.DOTALL)
    return found | {name: ast.Constant(literal(said)) for name, said in entries}


def test_defaults_are_those_of_the_class_that_a_docstring_refers_to():
    """Where it says of some or all arguments 'as in' another class, and both have a literal."""
    named = [node for path in sources() for node in tree(path).body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    owners = {node.name: node for node in named}
    classes = {name: node for name, node in owners.items() if isinstance(node, ast.ClassDef)}
    named += [part for node in classes.values() for part in node.body if isinstance(part, ast.FunctionDef)]
    compared, wrong = 0, []
    for node in named:
        docstring, own = ast.get_docstring(node) or '', defaults(node, classes)
        pattern = r'(?:as in|see)\s+:(?:class|func):`~?\.?(?:\w+\.)*(\w+)`'
        references = [(names.split(', '), x) for names, x in re.findall(rf'^    ([\w, ]+): {pattern}', docstring, re.M)]
        described = {
            name for names in re.findall(r'^    (\w+(?:, \w+)*) \(', docstring, re.M) for name in names.split(', ')
        }
        literals = [name for name, value in own.items() if isinstance(value, ast.Constant) and name not in described]
        references += [(literals, x) for x in re.findall(rf'\b[Aa]rguments(?::| are)\s+{pattern}', docstring)]
        for names, other in references:
            said = said_defaults(ast.get_docstring(owners[other]) or '')
            others = {argument: ast.Constant(literal(text)) for argument, text in said}  # of what its subclasses have
            others |= call_defaults(owners[other], classes) | defaults(owners[other], classes)
            for name in set(names).intersection(own, others):
                found, expected = (ast.unparse(values[name]) for values in (own, others))
                compared += 1
                if found != expected:
                    wrong.append(f'{node.name}: {name}={found}, in {other} {expected}')
    assert not wrong
    assert compared > 60
