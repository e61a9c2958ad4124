"""Notes which lines of the package run, in this process and in those that it starts, forked or not.

A copy of this file is the sitecustomize.py of a checkout. Byte n of the file MMATTN_LINES is line n of all modules.
"""

import ast
import mmap
import os
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import SimpleNamespace


def first_lines(checkout):
    """Return the number of the line before each module, by its path, and that after the last."""
    numbers, total = {}, 0
    for path in sorted(Path(checkout, 'mmattn').rglob('*.py')):
        numbers[str(path)] = total
        total += path.read_bytes().count(b'\n') + 2
    return numbers, total


def with_notes(tree, number):
    """Add a call of ``note_line`` before each statement. Docstrings and imports of __future__ stay the first."""

    def noted(node):
        match node:
            case ast.Expr(value=ast.Constant()) | ast.ImportFrom(module='__future__'):
                return [node]
        note = ast.parse(f'note_line({number + node.lineno})').body[0]
        for part in ast.walk(note):
            ast.copy_location(part, node)
        return [note, node]

    first = next((i for i, node in enumerate(tree.body) if len(noted(node)) > 1), 0)
    for node in [*ast.walk(tree)]:
        for body in [getattr(node, name, None) for name in ('body', 'orelse', 'finalbody')]:
            if isinstance(body, list):
                body[:] = [part for statement in body for part in noted(statement)]
    tree.body[first:first] = ast.parse('from noted_lines import note_line').body
    return tree


def note_lines(path):
    """Compile the modules of the checkout beside a file so that they note their lines there. Returns its bytes."""
    numbers, total = first_lines(Path(path).parent / 'checkout')
    with open(path, 'a+b') as file:
        file.truncate(total)
        lines = mmap.mmap(file.fileno(), total)

    def note_line(number):
        lines[number] = 1

    note_line._dynamo_marked_constant = True  # torch.compile calls it while it traces
    sys.modules['noted_lines'] = SimpleNamespace(note_line=note_line)
    get_code = SourceFileLoader.get_code

    def noting(loader, name):
        if loader.path not in numbers:
            return get_code(loader, name)
        tree = with_notes(ast.parse(loader.get_data(loader.path)), numbers[loader.path])
        return compile(tree, loader.path, 'exec', dont_inherit=True)

    SourceFileLoader.get_code = noting
    return lines


if __name__ == 'sitecustomize' and 'MMATTN_LINES' in os.environ:
    note_lines(os.environ['MMATTN_LINES'])
