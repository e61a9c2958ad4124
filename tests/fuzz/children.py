"""Calls in a child process with little memory and time, and what became of them.

``answers(call, count)`` yields the answer of ``call(number)`` for each number. The child is a fork, so that nothing is
imported again; if it ends, the next one goes on after the call that ended it.
"""

import faulthandler
import json
import logging
import os
import re
import resource
import signal
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from mmattn.utils.faults import FaultsError

MEMORY = 700 * 2**20  # bytes that a call may ask for beyond those of the process
SECONDS = 10
BATCH = 100  # calls of a child
LOADED, CLEAR, UNNAMED, RAW, MEMORY_ERROR, ENDED, SLOW = (
    'loaded', 'clear error', 'without the name', 'raw error', 'memory', 'process ended', 'too slow',
)  # fmt: skip


def classify(error, names):
    """Classify an error of a file: does it say in words which file is wrong?"""
    chain, each = [], error
    while each is not None and each not in chain:
        chain.append(each)
        each = each.__cause__ or each.__context__
    asked = next((each for each in chain if isinstance(each, MemoryError) or 'allocat' in str(each)), None)
    text = '; '.join(error.lines()) if isinstance(error, FaultsError) else str(error)
    if asked is not None:
        return MEMORY_ERROR, f'{text}: {asked!r}'
    is_raw = type(error) not in (ValueError, RuntimeError) and not isinstance(error, FaultsError | OSError)
    if is_raw:
        return RAW, f'{type(error).__name__}: {text} {_place(error)}'
    if names and not any(name in text for name in names) and str(getattr(error, 'filename', '')) == '':
        return UNNAMED, f'{text} {_place(error)}'
    return CLEAR, text


def _place(error):
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if '/mmattn/' in frame.filename or '/tools/' in frame.filename] or frames
    return f'({Path(ours[-1].filename).name}:{ours[-1].lineno} … {Path(frames[-1].filename).name}:{frames[-1].lineno})'


def answer(call, names):
    """Call a reader, which returns None or the faults that it lists, and classify what it says."""
    try:
        said = call()
    except (Exception, SystemExit) as error:
        return classify(error, names)
    if not said:
        return LOADED, ''
    found = CLEAR if any(name in said for name in names) or not names else UNNAMED
    return (MEMORY_ERROR if 'allocat' in said or 'MemoryError' in said else found), said


def answers(call, count):
    """Yield the number of each call, and the list that ``call(number)`` returns, or how it ended."""
    number = 0
    while number < count:
        read, write = os.pipe()
        sys.stdout.flush()
        child = os.fork()
        if not child:
            os.close(read)
            _work(call, range(number, min(count, number + BATCH)), write)
        os.close(write)
        done = number
        with open(read, encoding='utf-8') as lines:
            for line in lines:
                yield done, json.loads(line)
                done += 1
        _, status = os.waitpid(child, 0)
        if done < min(count, number + BATCH):
            name = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f'exit {status >> 8}'
            yield done, [SLOW if name in ('SIGALRM', 'SIGPROF') else ENDED, name, '']
            done += 1
        number = done


def _work(call, numbers, write):
    faulthandler.disable()  # pytest's would describe each end
    try:
        logging.disable(logging.CRITICAL)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        size = int(re.search(r'VmSize:\s+(\d+)', Path('/proc/self/status').read_text(encoding='utf-8'))[1]) * 1024
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for name in ('SIGALRM', 'SIGPROF'):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        with open(os.devnull, 'w', encoding='utf-8') as away:
            for number in numbers:
                signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of computing, as the machine may be busy
                signal.setitimer(signal.ITIMER_REAL, 10 * SECONDS)
                with redirect_stdout(away), redirect_stderr(away):
                    found = call(number)
                os.write(write, json.dumps(found).encode() + b'\n')
    except BaseException:
        os.write(write, json.dumps([ENDED, ' '.join(traceback.format_exc().split('\n')[-6:]), '']).encode())
    finally:
        os._exit(0)
