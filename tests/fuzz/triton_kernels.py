"""Random calls of Triton's global attention in its interpreter, with all gradients, beside the reference in float64:

    TRITON_INTERPRET=1 python -m tests.fuzz.triton_kernels [--count 1000] [--file calls.jsonl]

The tiles are drawn, too: small ones, so that a map of a hundred positions has several. An error is in units of what two
roundings of all inputs and of the output change (``comparison.reference``). Each call is a line of the file. A run that
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

from ..support import comparison, operator_calls

DTYPES = torch.float16, torch.float32, torch.bfloat16
MOST = 70  # positions of a map: the interpreter takes a second for a call


def random_call(chance):
    """A call of global attention on a small map. Some numbers have channels first in memory, some keys are −∞."""

    def draw(*shape, **_):
        x = operator_calls.randn(*shape, seed=chance.randrange(2**32))
        return x.movedim(-1, 0).contiguous().movedim(0, -1) if chance.random() < 0.3 else x

    call = operator_calls.random_call('global_attention', chance, draw, MOST, 9)
    if 'normalize' in call.settings:
        call.settings['normalize'] = False
    if 'key_bias' in call.tensors:
        above, bias = chance.choice((0.7, 9, 9)), call.tensors['key_bias']
        call.tensors['key_bias'] = bias.masked_fill(bias > above, -math.inf)
    return call


def speed_up_interpreter():
    """Let Triton's interpreter patch its language once for a module, in place of at each call within a kernel.

    It also does not check each sum and product of integers for an overflow. A call is an order of magnitude faster.
    Its products of bfloat16, which it would compute from the integers that hold them, and its integers that become
    bfloat16, are made right.
    """
    from triton import language as tl
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
    cast, dot = builder.cast_impl, builder.create_dot

    def cast_number(x, dtype):
        is_integer = x.dtype.scalar.is_int() and dtype.scalar == tl.bfloat16
        return cast(cast(x, tl.float32) if is_integer else x, dtype)

    def dot_of_numbers(*operands):
        return dot(*(cast(x, tl.float32) if x.dtype == tl.bfloat16 else x for x in operands[:2]), *operands[2:])

    builder.cast_impl, builder.create_dot = cast_number, dot_of_numbers


def small_tiles(rng):
    """Select the tiles of a kernel at random, in place of ``launch.select_config``."""
    from mmattn.ops.triton.launch import Config

    def select(kernel, **constants):
        strip = rng.choice((16, 16, 32))
        has_strip = kernel.__name__ != 'axis_gradients'
        return Config(rng.choice((16, 32, 32, 64)), strip * rng.choice((1, 2)), strip if has_strip else 0, 4, 2)

    return select


def check(number):
    """Compare one call: its largest error in units of the bound, and of which result."""
    from mmattn.ops.triton import blocks, launch

    chance, dtype = random.Random(number), DTYPES[number % len(DTYPES)]
    call = random_call(chance)
    tiles = mock.patch.object(launch, 'select_config', small_tiles(chance))
    with tiles, mock.patch.dict(blocks.OPERANDS, cpu=DTYPES):
        errors = comparison.errors(call, dtype, 'triton')
    assert errors is not None, (number, dispatch.failure('global_attention'))
    worst = max(errors, key=errors.get)
    return {
        'number': number,
        'dtype': str(dtype).removeprefix('torch.'),
        'error': round(errors[worst], 4),
        'of': worst,
    }


def main(argv=None):
    """Run the calls that the file lacks, and print a table of all. Returns 1 if an error is above its bound."""
    parser = argparse.ArgumentParser(prog='triton_kernels', description='Random calls of the Triton kernels.')
    parser.add_argument('--count', type=int, default=1000, help='number of calls')
    parser.add_argument('--file', type=Path, help='a line of JSON for each call')
    args = parser.parse_args(argv)
    if not triton.interpreted():
        parser.error('TRITON_INTERPRET=1 must be set')
    torch.set_num_threads(1)
    speed_up_interpreter()
    found = [json.loads(x) for x in args.file.read_text().splitlines()] if args.file and args.file.exists() else []
    done = {x['number'] for x in found}
    for number in range(args.count):
        if number not in done:
            found.append(check(number))
            if args.file:
                with args.file.open('a') as file:
                    file.write(json.dumps(found[-1]) + '\n')
    by_dtype = defaultdict(list)
    for x in found:
        by_dtype[x['dtype']].append(x)
    print('| dtype | calls | largest error / bound | above the bound | of |\n|---|---|---|---|---|')
    for dtype, calls in sorted(by_dtype.items()):
        worst, above = max(calls, key=lambda x: x['error']), [x['number'] for x in calls if not x['error'] <= 1]
        print(f'| {dtype} | {len(calls)} | {worst["error"]:.2f} | {above or "–"} | {worst["of"]} |')
    return int(any(not x['error'] <= 1 for x in found))


if __name__ == '__main__':
    sys.exit(main())
