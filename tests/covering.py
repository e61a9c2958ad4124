"""Which combinations of the parameters of a test run by default.

A test with two parameters runs with each value of both; a test with more, with each pair of values. A test marked
``every_case`` runs with every combination, as one does that does something else where a parameter has some value; one
marked ``one_case`` runs with the first. ``--all-cases`` runs all, and ``--rest`` the others
alone, with what is marked slow, e2e or kernels.
"""

import ast
import inspect
import textwrap
from collections import defaultdict
from itertools import combinations


def covering(rows, strength):
    """Return the positions of some rows in which all occurs that occurs in any of them: each value (strength 1), or
    each pair of values (strength 2), by column. The row that adds most is taken next; of several, the first.

    >>> covering([(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1)], 2)
    [0, 3, 5, 6]
    """
    occurring = [set(combinations(enumerate(row), strength)) for row in rows]
    missing = set().union(*occurring)
    taken = []
    while missing:
        best = max(range(len(rows)), key=lambda position: len(occurring[position] & missing))
        missing -= occurring[best]
        taken.append(best)
    return sorted(taken)


def parameters(case):
    """Return a case's values, one per ``parametrize``. Values are compared by identity, as some are tensors."""
    params = {name: id(value) for name, value in case.callspec.params.items()}
    together = [mark.args[0] for mark in case.iter_markers('parametrize')]
    together = [names.replace(' ', '').split(',') if isinstance(names, str) else names for names in together]
    values = [tuple(params.pop(name) for name in names) for names in together]
    return [*values, *params.values()]


def marked(case):
    """Return whether the mark of a case says that it does not run by default."""
    return any(case.get_closest_marker(mark) for mark in ('slow', 'e2e', 'kernels'))


def first(cases):
    """Return the first case that runs by default."""
    return next((case for case in cases if not marked(case)), cases[0])


def branches(case):
    """Return whether a test has an ``if`` on a parameter: what is behind it may be proved by one combination alone."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(case.function)))
    conditions = [node.test for node in ast.walk(tree) if isinstance(node, ast.If)]
    read = {node.id for condition in conditions for node in ast.walk(condition) if isinstance(node, ast.Name)}
    return bool(read & {*case.callspec.params})


def left_out(items):
    """Return those of the collected cases that do not run by default."""
    tests = defaultdict(list)
    for item in items:
        if hasattr(item, 'callspec') and not item.get_closest_marker('every_case'):
            tests[item.nodeid.partition('[')[0]].append(item)
    rest = set()
    for cases in tests.values():
        if len(cases) == 1 or branches(cases[0]):
            continue
        rows = [parameters(case) for case in cases]
        if cases[0].get_closest_marker('one_case'):
            rest.update(case for case in cases if case is not first(cases))
        elif len(rows[0]) > 1:
            taken = {cases[position] for position in covering(rows, min(len(rows[0]) - 1, 2))}
            rest.update(case for case in cases if case not in taken)
    return rest
