"""Values and all gradients of a call of an operator, and their errors beside float64."""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from mmattn.ops import dispatch
from mmattn.ops.autograd import list_tensors

from .operator_calls import Call, Tensors, cast, each, operator

# How many roundings of all inputs a result may be off: more where sums have no more digits than their terms.
ROUNDINGS = {torch.float16: 2, torch.bfloat16: 2, torch.float32: 64}


def cotangent(x: Tensor) -> Tensor:
    """Make numbers with a few bits, so that they are the same in every dtype."""
    return torch.arange(x.numel(), device=x.device).mul(7).remainder(13).sub(6).div(8).to(x.dtype).view(x.shape)


def evaluate(
    function: Callable[..., Any],
    tensors: Tensors,
    dtype: torch.dtype | None = None,
    *,
    shift: float = 0.0,
    seed: int = 0,
    **settings: Any,
) -> dict[str, Tensor]:
    """Compute the outputs of a function, and the gradients of all its floating-point tensors.

    Args:
        function (Callable): an operator, for example.
        tensors (dict): its tensors by name, whose strides are kept.
        dtype (torch.dtype, optional): what the tensors are cast to. Defaults to their own.
        shift (float): the tensors, the gradients of the outputs, and the output that the backward pass keeps, are
            multiplied by 1 ± ``shift``. Defaults to 0.
        seed (int): draws the signs. Defaults to 0.
        **settings: further arguments of the function.

    Returns:
        dict[str, Tensor]: 'output', 'lse' if there are two outputs, and 'd_<name>'. The gradients of a tuple of tensors
        are numbered from the second on.
    """
    generator = torch.Generator().manual_seed(seed)
    leaves: dict[str, Tensor] = {}

    def moved(x: Tensor) -> Tensor:
        return x * (1 + shift * (2 * torch.randint(2, x.shape, generator=generator) - 1).to(x)) if shift else x

    def leaf(name: str, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x
        leaves[name] = moved(x.detach().to(dtype or x.dtype)).requires_grad_()
        return leaves[name]

    arguments = {
        name: tuple(leaf(f'd_{name}{i or ""}', y) for i, y in enumerate(x))
        if isinstance(x, tuple)
        else leaf(f'd_{name}', x)
        for name, x in tensors.items()
    }
    if shift:
        inputs, axes = {x.data_ptr() for x in list_tensors(tuple(arguments.values()))}, tensors['value'].dim()

        def keep(x: Tensor) -> Tensor:  # the log-sum-exp has fewer axes than the output, and is not rounded
            return moved(x) if x.dim() == axes and x.data_ptr() not in inputs else x

        with saved_tensors_hooks(keep, lambda x: x):
            outputs = function(**arguments, **settings)
    else:
        outputs = function(**arguments, **settings)
    outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
    grads = torch.autograd.grad(outputs, list(leaves.values()), [moved(cotangent(x)) for x in outputs])
    return {**dict(zip(('output', 'lse'), (x.detach() for x in outputs))), **dict(zip(leaves, grads))}


def reference(call: Call, dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Compute in float64 what inputs rounded to ``dtype`` give. Also returns by how much each number may differ.

    A kernel rounds what it stores and what it multiplies, which changes its results about as rounding the inputs does,
    and the output from which the backward pass starts. So they are all moved by half a unit in the last place, up or
    down, and the tolerance of a tensor is its largest change, times :data:`ROUNDINGS`, and one rounding of each number.
    """
    eps = torch.finfo(dtype).eps
    run = functools.partial(evaluate, operator(call.operator), cast(call.tensors, dtype), torch.float64)
    with dispatch.backend('reference'):
        expected = run(**call.settings)
        moves = 4 if expected['output'].numel() < 1000 else 1  # of few numbers, one move may change little by chance
        others = [run(shift=eps / 2, seed=seed, **call.settings) for seed in range(moves)]
    tolerances = {}
    for name, x in expected.items():
        changes = [torch.where(x == y[name], 0, y[name] - x).abs().amax() for y in others if x.numel()]
        tolerances[name] = eps * torch.where(x.isfinite(), x, 0).abs() + ROUNDINGS[dtype] * max(changes, default=0)
    return expected, tolerances


def errors(
    call: Call,
    dtype: torch.dtype,
    implementation: str = 'auto',
    device: str | torch.device | None = None,
    layout: Callable[[Tensor], Tensor] = lambda x: x,
) -> dict[str, float] | None:
    """Compare the results of a call in ``dtype`` with the reference in float64. The operator must be one with kernels.

    Args:
        call (Call): the call. The reference runs where its tensors are.
        dtype (torch.dtype): dtype of the tensors, which are rounded to it.
        implementation (str): what runs, as in :func:`dispatch.backend`. Defaults to 'auto'.
        device (str or torch.device, optional): where it runs. Defaults to where the tensors are.
        layout (Callable): changes the tensors. Defaults to none.

    Returns:
        dict[str, float] | None: the largest error of each result in units of its tolerance, infinite for NaN. None if
        the kernel that was selected does not run both passes.
    """
    tensors = each(cast(call.tensors, dtype), lambda x: layout(x.to(device or x.device)))
    run = functools.partial(evaluate, operator(call.operator), tensors, **call.settings)
    if (actual := dispatch.run_by(implementation, call.operator, run)) is None:
        return None
    expected, tolerances = reference(call, dtype)
    return {name: _error(actual[name].to(x.device).double(), x, tolerances[name]) for name, x in expected.items()}


def _error(actual: Tensor, expected: Tensor, tolerance: Tensor) -> float:
    error = torch.where(expected == actual, 0, (actual - expected).abs() / tolerance)
    return error.nan_to_num(nan=math.inf).max().item() if error.numel() else 0.0


def differences(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """Compute the norm of the difference of each result, relative to its norm, or to 1 % of the largest norm.

    It is infinite for NaN.
    """
    assert actual.keys() == expected.keys()
    norms = {name: x.double().norm() for name, x in expected.items()}
    least = 1e-2 * max(norm.item() for norm in norms.values())  # some gradients vanish but for rounding
    pairs = {name: (actual[name].to(x.device).double(), x.double()) for name, x in expected.items()}
    changes = {name: (x - y).norm() / norms[name].clamp(min=least) for name, (x, y) in pairs.items()}
    return {name: change.nan_to_num(nan=math.inf).item() for name, change in changes.items()}
