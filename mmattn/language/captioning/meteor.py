"""METEOR 1.5 of captions, by its Java program."""

from __future__ import annotations

from collections.abc import Sequence
from subprocess import PIPE, Popen
from tempfile import TemporaryFile

from .java import java_command


def meteor(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, list[float]]:
    """Return METEOR of a corpus and of each caption, by METEOR 1.5 for English, as in the evaluation of COCO captions.

    Args:
        hypotheses (sequence of str): captions; their words are separated by spaces.
        references (sequence of sequence of str): the references of each.

    Returns:
        tuple[float, list[float]]: from 0 to 1.

    Raises:
        ImportError: pycocoevalcap is not installed.
        FileNotFoundError: there is no Java.
        RuntimeError: the program failed.
    """
    command = [*java_command('meteor/meteor-1.5.jar', '-Xmx2G'), 'Meteor', '-', '-', '-stdio', '-l', 'en', '-norm']
    pairs = list(zip(hypotheses, references, strict=True))
    with TemporaryFile('w+', encoding='utf-8') as errors:
        try:  # one process: it loads its paraphrases for seconds
            with Popen(command, stdin=PIPE, stdout=PIPE, stderr=errors, encoding='utf-8') as process:
                statistics = [
                    _answer(process, ['SCORE', *map(_plain, captions), _plain(hypothesis)])
                    for hypothesis, captions in pairs
                ]
                found = [float(_answer(process, ['EVAL', *statistics]))]
                found += [float(_answer(process)) for _ in pairs]
        except (ValueError, BrokenPipeError) as error:
            errors.seek(0)
            raise RuntimeError(f'METEOR failed: {error} {errors.read().strip()[-500:]}') from error
    return found[-1], found[:-1]


def _answer(process: Popen, parts: Sequence[str] = ()) -> str:
    """Return the next line of output, after writing a line of input if there are parts."""
    assert process.stdin
    assert process.stdout
    if parts:
        process.stdin.write(' ||| '.join(parts) + '\n')
        process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise ValueError('no answer')
    return line.strip()


def _plain(text: str) -> str:
    """Return the text without the separator of METEOR's input."""
    return ' '.join(text.replace('|||', ' ').split())
