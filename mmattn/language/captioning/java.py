"""The Java programs of pycocoevalcap, an optional package."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from mmattn.language.text.subwords import import_optional


def java_command(jar: str) -> list[str]:
    """Return the start of the command that runs a program of pycocoevalcap.

    Args:
        jar (str): path of the program in the package.

    Raises:
        ImportError: pycocoevalcap is not installed; the message gives the command that installs it.
        FileNotFoundError: ``java`` is not on the PATH, or the program is not in the package.
    """
    path = Path(next(iter(import_optional('pycocoevalcap').__path__)), jar)
    java = shutil.which('java')
    if java is None:
        raise FileNotFoundError('java: not on the PATH; a Java runtime (8 or later) is required')
    if not path.is_file():
        raise FileNotFoundError(f'{path}: no such file; reinstall pycocoevalcap')
    return [java, '-cp', str(path)]


def meteor(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, list[float]]:
    """Return METEOR 1.5 of a corpus and of each caption, from 0 to 1, as in the evaluation of COCO captions.

    Args:
        hypotheses (sequence of str): captions; their words are separated by spaces.
        references (sequence of sequence of str): the references of each caption.

    Raises:
        ImportError, FileNotFoundError: as :func:`java_command`.
        RuntimeError: the program failed.
    """
    java_command('meteor/meteor-1.5.jar')
    scorer = import_optional('pycocoevalcap.meteor.meteor').Meteor()
    try:
        return scorer.compute_score(
            {i: [text.replace('|||', ' ') for text in captions] for i, captions in enumerate(references)},
            {i: [text] for i, text in enumerate(hypotheses)},
        )
    except (OSError, ValueError) as error:  # the program has ended
        scorer.meteor_p.kill()
        errors = scorer.meteor_p.communicate()[1].decode(errors='replace')
        raise RuntimeError(f'METEOR failed: {error} {errors.strip()[-500:]}') from error
    finally:
        if scorer.lock.locked():  # after an error; the scorer would wait for itself when it is deleted
            scorer.lock.release()
