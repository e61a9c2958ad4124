"""Random calls of Triton's kernels in its interpreter, with all gradients, compared with the references in float64:

    TRITON_INTERPRET=1 python -m tests.fuzz.triton_kernels [--count 1000] [--only OPERATOR …] [--file calls.jsonl]

The tiles are drawn, too: small ones, so that a map of a hundred positions has several. An error is in units of what two
roundings of all inputs and of the output change (``check_gpu.reference``). Each call is a line of the file. A run that
is started again continues after them.
"""

import argparse
import dataclasses
import json
import math
import random
import sys
from collections import defaultdict
from pathlib import Path
from unittest import mock

import torch

from mmattn.ops import dispatch, triton
from mmattn.ops.gpu import check_gpu
from mmattn.ops.gpu.cases import Case

DTYPES = torch.float16, torch.float32  # the interpreter's products of bfloat16 are wrong
MOST = 70  # positions of a map: the interpreter takes a second for a call


class Draw:
    """Draws one call: tensors and settings."""

    def __init__(self, number):
        self.random = random.Random(number)
        self.generator = torch.Generator().manual_seed(number)
        self.lead = self.choose((1, 1), (1, 2), (2, 1))
        self.tensors, self.settings = {}, {}

    def maybe(self, share=0.5):
        return self.random.random() < share

    def choose(self, *choices):
        return self.random.choice(choices)

    def size(self, axes):
        """Sides of a map of a few positions, or of many."""
        most, sides = self.choose(MOST // 8, MOST), [1] * axes
        for axis in self.random.sample(range(axes), axes):
            sides[axis] = self.random.randint(1, max(1, min(most // math.prod(sides), 40)))
        return tuple(sides)

    def randn(self, *shape):
        """Numbers, some of them with channels first in memory."""
        x = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        return x.movedim(-1, 0).contiguous().movedim(0, -1) if self.maybe(0.3) else x

    def map(self, size, *channels):
        return self.randn(*self.lead, *size, *channels)

    def operands(self, size, key_size, channels=(1, 3, 5, 8, 16, 17, 33)):
        channels, values = self.choose(*channels), self.choose(*channels)
        self.tensors |= {'query': self.map(size, channels), 'key': self.map(key_size, channels)}
        self.tensors['value'] = self.map(key_size, values)
        self.settings |= {'scale': self.choose(None, 0.3, 1.0), 'return_lse': self.maybe()}

    def window_bias(self, size, window, entries):
        self.settings['window_size'] = window
        self.tensors['window_bias'] = self.map(size, entries)
        outside = self.choose('learned', 'learned', 0.0, 0.7, -math.inf)
        if outside == 'learned':
            self.tensors['outside_bias'] = self.map(size)
        else:
            self.settings['outside_bias'] = outside

    def window(self, axes, sides=(1, 3, 5, 9)):
        return tuple(self.choose(*sides) for _ in range(axes))

    def key_mask(self, size):
        if self.maybe(0.3):
            self.tensors['key_mask'] = self.randn(self.lead[0], *size) > self.choose(-1.5, 0.5, 9)


def global_attention(draw):
    axes, is_causal, has_window = draw.choose(1, 2, 2, 3), draw.maybe(0.3), draw.maybe(0.7)
    size = key_size = draw.size(axes)
    if not is_causal and not has_window and draw.maybe():
        key_size = draw.size(axes)
    draw.operands(size, key_size)
    draw.settings['is_causal'] = is_causal
    if has_window:
        window = draw.window(axes)
        entries = math.prod(window)
        draw.window_bias(size, window, (entries + 1) // 2 if is_causal else entries)
    if draw.maybe(0.3):
        draw.tensors['axis_bias'] = [draw.map(size, side) for side in key_size]
    if draw.maybe(0.3):
        bias = draw.map(key_size)
        draw.tensors['key_bias'] = bias.masked_fill(bias > draw.choose(0.7, 9), -math.inf)
    draw.key_mask(key_size)


def local_attention(draw):
    size, kernel_size, has_content = draw.size(2), draw.window(2, sides=(1, 3, 3, 5)), draw.maybe(0.8)
    draw.operands(size, size)
    draw.settings |= {'kernel_size': kernel_size, 'dilation': draw.choose(1, 1, 2, 3)}
    if not has_content:
        draw.settings |= dict.fromkeys(('query', 'key'))
        del draw.tensors['query'], draw.tensors['key']
    if not has_content or draw.maybe():
        bias = draw.map(size, math.prod(kernel_size))
        draw.tensors['window_bias'] = bias.masked_fill(bias > draw.choose(0, 9, 9), -math.inf)
    draw.key_mask(size)


CALLS = {'global_attention': global_attention, 'local_attention': local_attention}


def speed_up_interpreter():
    """Let Triton's interpreter patch its language once for a module, in place of at each call within a kernel.

    It also does not check each sum and product of integers for an overflow. A call is an order of magnitude faster.
    """
    from triton.runtime import interpreter

    modules = set()

    def call(function, *args, **kwargs):
        if function.fn.__module__ not in modules:
            modules.add(function.fn.__module__)
            interpreter._patch_lang(function.fn)
        return function.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def small_tiles(rng):
    """Select the tiles of a kernel at random, in place of ``launch.select_config``."""
    from mmattn.ops.triton.launch import Config

    def select(kernel, shared, **constants):
        if kernel.__name__.startswith('local_'):
            return Config(rng.choice((16, 32, 64)), 0, 0, 4, 2)
        strip = rng.choice((16, 16, 32))
        has_strip = kernel.__name__ != 'axis_gradients'
        return Config(rng.choice((16, 32, 32, 64)), strip * rng.choice((1, 2)), strip if has_strip else 0, 4, 2)

    return select


def check(operator, number):
    """Compare one call: its largest error in units of the bound, of which result, and how many launches it takes."""
    from mmattn.ops.triton import launch, local_attention

    draw, dtype = Draw(number), DTYPES[number % 2]
    CALLS[operator](draw)
    case, launches = Case('', draw.tensors, draw.settings), []
    run, select = launch.launch, small_tiles(draw.random)

    def counted(kernel, *arguments, **constants):
        launches.append(kernel.__name__)
        run(kernel, *arguments, **constants)

    changed = mock.patch.multiple(launch, launch=counted, select_config=select, KEYS_AS_ROWS=draw.maybe())
    narrow = mock.patch.object(local_attention, 'LEAST_COLUMNS', 8)
    with changed, narrow, dispatch.backend(f'{operator}=triton'), dispatch.kernels_run() as kernels:
        actual = check_gpu.evaluate(operator, case, dtype, dtype)
    assert kernels == [operator, f'{operator}_backward'], (operator, number, dispatch.failure(operator))
    errors = check_gpu.errors_in_tolerances(actual, *check_gpu.reference(operator, case, dtype))
    worst = max(errors, key=errors.get)
    return {
        'operator': operator,
        'number': number,
        'dtype': str(dtype).removeprefix('torch.'),
        'error': round(errors[worst], 4),
        'of': worst,
        'launches': len(launches),
    }


def main(argv=None):
    """Run the calls that the file lacks, and print a table of all. Returns 1 if an error is above its bound."""
    parser = argparse.ArgumentParser(prog='triton_kernels', description='Random calls of the Triton kernels.')
    parser.add_argument('--count', type=int, default=1000, help='calls of each operator')
    parser.add_argument('--only', nargs='+', choices=CALLS, default=list(CALLS))
    parser.add_argument('--file', type=Path, help='a line of JSON for each call')
    args = parser.parse_args(argv)
    if not triton.interpreted():
        parser.error('TRITON_INTERPRET=1 must be set')
    torch.set_num_threads(1)
    speed_up_interpreter()
    found = [json.loads(x) for x in args.file.read_text().splitlines()] if args.file and args.file.exists() else []
    done = {(x['operator'], x['number']) for x in found}
    for number in range(args.count):
        for operator in args.only:
            if (operator, number) not in done:
                found.append(check(operator, number))
                if args.file:
                    with args.file.open('a') as file:
                        file.write(json.dumps(found[-1]) + '\n')
    by_dtype = defaultdict(list)
    for x in found:
        by_dtype[x['operator'], x['dtype']].append(x)
    print('| operator | dtype | calls | largest error / bound | above the bound | of |\n|---|---|---|---|---|---|')
    for (operator, dtype), calls in sorted(by_dtype.items()):
        worst, above = max(calls, key=lambda x: x['error']), [x['number'] for x in calls if not x['error'] <= 1]
        print(f'| {operator} | {dtype} | {len(calls)} | {worst["error"]:.2f} | {above or "–"} | {worst["of"]} |')
    return int(any(not x['error'] <= 1 for x in found))


if __name__ == '__main__':
    sys.exit(main())
