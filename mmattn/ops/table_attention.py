"""Attention of a slice of queries, or of a group of positions, to all keys: by formulas, or by PyTorch's attention.

Query is ``(…, n, D)``, key ``(…, m, D)``, value ``(…, m, Dv)``, in the dtype of their products. The table of biases is
None or ``(…, n, m)``, and −∞ excludes a key. The output of a query without keys is 0.

PyTorch's attention is the faster one on GPUs. It takes the table of biases, not the logits, returns no log-sum-exp, and
its kernels need padded operands and an empty key: so both ways stay, and the formulas are the standard.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from .dtypes import accumulator

AUTOGRAD = ('AutogradFunctionality', 'AutogradOther', 'AutogradNestedTensor', 'ADInplaceOrView')
ALIGNMENT = 16  # bytes
MULTIPLE = 8  # of keys and channels that the kernels of PyTorch require
# Without cuDNN, which plans anew for each new size: 182 ms a call on an H200, in place of 1.7 ms, and sentences,
# captions and test images differ in size. Where sizes repeat, it was as fast as the others.
BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
MOST_BATCHES = 2**15  # a grid of blocks has at most 2¹⁶ − 1 on this axis


def attend(logits: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Compute output ``(…, n, Dv)`` and log-sum-exp ``(…, n, 1)`` of attention. Overwrites the logits ``(…, n, m)``."""
    peak = logits.amax(-1, keepdim=True)
    peak.clamp_(min=torch.finfo(peak.dtype).min)  # −∞: the query has no key
    weights = logits.sub_(peak).exp_()
    total = weights.sum(-1, keepdim=True)
    # A sum below 1 is 0: the largest weight is 1, unless the query has no key.
    return (weights.to(value.dtype) @ value) / total.clamp(min=1), peak + total.log()


def attend_backward(
    grad: Tensor,
    out: Tensor,
    grad_lse: Tensor | None,
    lse: Tensor | None,
    logits: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradients of query, key, value and logits from what :func:`attend` returned.

    ``grad_lse`` is the gradient of ``lse``, if it has one. Overwrites the logits. If ``lse`` is None, it is computed
    again.
    """
    lse = logits.logsumexp(-1, keepdim=True) if lse is None else lse
    weights = logits.sub_(lse.clamp(min=torch.finfo(lse.dtype).min)).exp_()
    d_value = weights.to(grad.dtype).transpose(-1, -2) @ grad
    mean = (grad * out).sum(-1, keepdim=True, dtype=weights.dtype)
    if grad_lse is not None:  # the derivative of the log-sum-exp is the weights
        mean -= grad_lse
    d_logits = _subtracted(grad, value, mean).mul_(weights)
    d_pairs = d_logits.to(query.dtype)
    return (d_pairs @ key).mul_(scale), d_pairs.transpose(-1, -2) @ (query * scale), d_value, d_logits


def _subtracted(grad: Tensor, value: Tensor, mean: Tensor) -> Tensor:
    """Compute grad · valueᵀ − mean in the dtype of ``mean``, without rounding the product, as the two may cancel."""
    if grad.dtype != mean.dtype:  # in 16 bit: two more channels hold the mean and its rounding error
        high = mean.to(grad.dtype)
        more = torch.cat([high, (mean - high).to(grad.dtype)], -1)
        grad, value = torch.cat([grad, F.pad(more, (0, MULTIPLE - 2))], -1), F.pad(value, (0, MULTIPLE), value=-1.0)
        return (grad @ value.transpose(-1, -2)).to(mean.dtype)
    return (grad @ value.transpose(-1, -2)).sub_(mean)


def log_sum_exp(query: Tensor, key: Tensor, table: Tensor | None, scale: float) -> Tensor:
    """Compute the log-sum-exp ``(…, n)`` of the logits that :func:`sdpa` does not return."""
    return _logits(query, key, table, scale).logsumexp(-1)


def _logits(query: Tensor, key: Tensor, table: Tensor | None, scale: float) -> Tensor:
    logits = ((query * scale) @ key.transpose(-1, -2)).to(accumulator(query))
    return logits if table is None else logits + table


def uses_sdpa(device: torch.device) -> bool:
    """Check whether PyTorch has fast kernels of attention with a table on a device."""
    return device.type != 'cpu'


def uses_sdpa_backward(device: torch.device, channels: int, with_table: bool) -> bool:
    """Check whether PyTorch's gradients are faster on a device than :func:`attend_backward`."""
    # For more than 128 channels with the gradient of a table, PyTorch has one kernel, whose sums do not fit into
    # registers: with 256 channels on an H200, 16 ms in bfloat16 and 19 ms in float32, in place of 7 ms and 9 ms.
    return uses_sdpa(device) and not (with_table and channels > 128)


def padded_keys(count: int) -> int:
    """Count the keys and one empty key, for queries without keys, rounded up for PyTorch's kernels."""
    return -(-(count + 1) // MULTIPLE) * MULTIPLE


def pad(x: Tensor, rows: int | None = None) -> Tensor:
    """Pad the channels of ``(…, n, C)`` with zeros to a multiple of 8, and its positions to ``rows``."""
    below = 0 if rows is None else rows - x.shape[-2]
    right = -x.shape[-1] % MULTIPLE or MULTIPLE * (not x.shape[-1])  # without channels, there is no content
    if below or right:
        return F.pad(x, (0, right, 0, below))
    # PyTorch's kernels need adjacent channels and an aligned start, which they do not check in float32.
    aligned = x.stride(-1) == 1 and x.storage_offset() * x.element_size() % ALIGNMENT == 0
    return x if aligned else x.clone(memory_format=torch.contiguous_format)


def lowest(dtype: torch.dtype) -> float:
    """Choose the bias of the empty key, below the logits of all other keys."""
    # A power of 2, which every dtype holds exactly, also as log-sum-exp, and after log2(e) is multiplied in and divided
    # out again, as PyTorch's kernels do. Otherwise the weight of an empty key, exp(logit − lse), is infinite in the
    # backward pass, and the gradients of a query without keys are NaN.
    return -(2.0**15) if dtype == torch.float16 else -(2.0**100)


def close_table(table: Tensor, count: int) -> None:
    """Set the columns of a table after the ``count`` keys, in place: one empty key, and no further keys."""
    # A row of −∞ alone would give NaN in some kernels. The empty key, whose value is 0, only counts without other keys.
    table[..., count].fill_(lowest(table.dtype))
    table[..., count + 1 :].fill_(-torch.inf)


def sdpa(query: Tensor, key: Tensor, value: Tensor, table: Tensor | None, scale: float) -> Tensor:
    """Call PyTorch's ``scaled_dot_product_attention`` for operands padded by :func:`pad`."""
    if not query.shape[0]:  # an error in some kernels of torch < 2.10
        return _logits(query, key, table, scale).to(value.dtype) @ value
    with sdpa_kernel(BACKENDS):
        if query.shape[0] > MOST_BATCHES:
            parts = [x.split(MOST_BATCHES) for x in (query, key, value)]
            tables = [None] * len(parts[0]) if table is None else table.split(MOST_BATCHES)
            calls = zip(*parts, tables)
            return torch.cat([F.scaled_dot_product_attention(q, k, v, mask, scale=scale) for q, k, v, mask in calls])
        return F.scaled_dot_product_attention(query, key, value, table, scale=scale)


def sdpa_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, table: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Call :func:`sdpa` again, and compute the gradients of its tensors."""
    # All tensors get gradients: some kernels require this for the gradient of a table.
    tensors = [x.detach().requires_grad_() for x in (query, key, value, table) if x is not None]
    include, exclude = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    for name in AUTOGRAD:  # the dispatcher runs a backward operator without autograd
        exclude = exclude.remove(getattr(torch._C.DispatchKey, name))
    with torch._C._ForceDispatchKeyGuard(include, exclude), torch.enable_grad():
        query, key, value, *tables = tensors
        out = sdpa(query, key, value, tables[0] if tables else None, scale)
        d_query, d_key, d_value, *d_tables = torch.autograd.grad(out, tensors, grad)
    return d_query, d_key, d_value, d_tables[0] if d_tables else None
