"""Compiles, without a GPU, the Triton kernels that tune and ops compare: ``python warm_cache.py 9.0``.

They are in Triton's cache then, ``$TRITON_CACHE_DIR``. ``prepare.sh`` carries it.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from unittest import mock

import torch
from findings import use_carried_cache
from tuning import GROUPS, Group

import mmattn.utils.command
from mmattn.ops.operator import record_call

# compile_triton, times and workloads are in prepare.sh's path alone. So they are imported where they are used.


def main() -> None:
    """Compile all configurations, one on each core."""
    parser = argparse.ArgumentParser(prog='warm_cache', description='Compile Triton kernels for a GPU elsewhere.')
    parser.add_argument('capability', type=float, help='compute capability, such as 9.0')
    args = parser.parse_args()
    from times import UNTIMED, WORK

    calls = [name for name, operator in WORK.items() if operator in UNTIMED.values()]
    warm(round(10 * args.capability), [*calls, *GROUPS])


def warm(capability: int, groups: Sequence[Group | str]) -> None:
    with ProcessPoolExecutor() as pool:
        for group in pool.map(partial(compile_group, capability), groups):
            print(group, flush=True)


def compile_group(capability: int, group: Group | str) -> Group | str:
    """Compile the kernels of a group of the part tune, or, in the table's configurations, of a workload."""
    import compile_triton
    from workloads import WORKLOADS

    from mmattn.ops.triton import launch

    use_carried_cache()
    if isinstance(group, str):
        work = WORKLOADS[group](True, torch.bfloat16, 'meta').ours
        operator, arguments = record_call(work.function, *work.inputs)
        listed = compile_triton.record_launches(operator.name, arguments, with_lse=False)
        select = partial(launch.select_config, capability=capability // 10)
    else:
        channels, keys_as_rows, config = group
        with mock.patch.object(launch, 'KEYS_AS_ROWS', keys_as_rows):
            by_title = compile_triton.launches('global_attention', torch.bfloat16, channels)
        measured = [x for x in by_title if x.startswith('key_rows') or not (keys_as_rows or x == 'axis_gradients')]
        listed = [(x, *by_title[x]) for x in measured]
        select = lambda *_, **constants: launch.Config(*config)  # noqa: E731
    with compile_triton.as_if_on(capability):
        for _, kernel, arguments, constants in listed:
            kernel.warmup(*arguments, **constants, **launch.options(select(kernel, **constants)), grid=(1,))
    return group


if __name__ == '__main__':
    mmattn.utils.command.run(main)
