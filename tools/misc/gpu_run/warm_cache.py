"""Compiles, without a GPU, the Triton kernels that the part tune compares: ``python warm_cache.py 9.0``.

They are in Triton's cache then, ``$TRITON_CACHE_DIR``. ``prepare.sh`` carries it.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import torch
from findings import use_carried_cache
from tuning import GROUPS, Group

import mmattn.utils.command


def main() -> None:
    """Compile all configurations, one on each core."""
    parser = argparse.ArgumentParser(prog='warm_cache', description='Compile Triton kernels for a GPU elsewhere.')
    parser.add_argument('capability', type=float, help='compute capability, such as 9.0')
    args = parser.parse_args()
    warm(round(10 * args.capability), GROUPS)


def warm(capability: int, groups: Sequence[Group]) -> None:
    with ProcessPoolExecutor() as pool:
        for group in pool.map(partial(compile_group, capability), groups):
            print(group, flush=True)


def compile_group(capability: int, group: Group) -> Group:
    """Compile the kernels of a group of the part tune."""
    import compile_triton  # it is in prepare.sh's path alone

    from mmattn.ops.triton import launch

    use_carried_cache()
    channels, config = group
    options = launch.options(launch.Config(*config))
    with compile_triton.as_if_on(capability):
        for name, (kernel, arguments, constants) in compile_triton.launches(torch.bfloat16, channels).items():
            if name != 'axis_gradients':
                kernel.warmup(*arguments, **constants, **options, grid=(1,))
    return group


if __name__ == '__main__':
    mmattn.utils.command.run(main)
