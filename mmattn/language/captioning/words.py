"""The words of captions: by a rule of our own, or as the evaluation of COCO captions splits them, by a Java program."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence

from mmattn.language.text.subwords import normalized

from .java import java_command

PUNCTUATION = re.compile(r"""[.?!,:;`"(){}\[\]\n]|''|--""")
# Those of the tokenizer's tokens that the evaluation leaves out.
LEFT_OUT = {"''", "'", '``', '`', '-LRB-', '-RRB-', '-LCB-', '-RCB-', '.', '?', '!', ',', ':', '-', '--', '...', ';'}


def caption_words(text: str) -> list[str]:
    """Return the words of a caption, in lower case and without punctuation.

    Example:
        >>> caption_words("A man's T-shirt - it is (nearly) white.")
        ['a', "man's", 't-shirt', 'it', 'is', 'nearly', 'white']
    """
    return [word for word in PUNCTUATION.sub(' ', normalized(text).lower()).split() if word not in ('-', "'")]


def ptb_words(texts: Sequence[str]) -> list[list[str]]:
    """Return the words of captions as the evaluation of COCO captions does: by Stanford's PTBTokenizer 3.4.1.

    Args:
        texts (sequence of str): the captions, of any number. A start of the program takes about a second.

    Raises:
        ImportError: pycocoevalcap is not installed.
        FileNotFoundError: there is no Java.
        RuntimeError: the program failed.

    Example:
        >>> ptb_words(["A man's T-shirt."])  # doctest: +SKIP
        [['a', 'man', "'s", 't-shirt']]
    """
    command = java_command('tokenizer/stanford-corenlp-3.4.1.jar')
    command += ['edu.stanford.nlp.process.PTBTokenizer', '-preserveLines', '-lowerCase']
    command += ['-encoding', 'UTF-8']
    lines = [' '.join(normalized(text).split()) for text in texts]  # a line of input is a line of output
    done = subprocess.run(command, input=''.join(f'{line}\n' for line in lines).encode(), capture_output=True)
    found = done.stdout.decode(errors='replace').split('\n')[:-1]
    if done.returncode or len(found) != len(lines):
        message = done.stderr.decode(errors='replace').strip()[-500:]
        raise RuntimeError(f'PTBTokenizer returned {len(found)} lines for {len(lines)} captions: {message}')
    return [[word for word in line.split() if word not in LEFT_OUT] for line in found]
