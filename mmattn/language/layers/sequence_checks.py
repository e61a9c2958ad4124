"""Checks of the arguments of layers for sequences, and the type of their decoding state."""

import torch
from torch import Tensor

from mmattn.utils.checks import check_count

State = dict[str, Tensor]


def check_sequence(name: str, x: Tensor, channels: int) -> None:
    """Check that argument ``name`` is a batch of sequences ``(B, L, channels)``."""
    check_not_nested(name, x)
    if x.dim() != 3 or x.shape[-1] != channels:
        raise ValueError(f'{name} must be (B, L, {channels}); got {tuple(x.shape)}')


def check_not_nested(name: str, x: Tensor) -> None:
    """Check that argument ``name`` is an ordinary tensor."""
    if x.is_nested:
        raise ValueError(
            f'{name} must not be a nested tensor: pad it (to_padded_tensor), with key_padding_mask. In '
            'nn.TransformerEncoder, set enable_nested_tensor=False'
        )


def check_same_sequence(query: Tensor, key: Tensor | None, value: Tensor | None, reason: str) -> None:
    """Check that ``key`` and ``value`` are None or have the shape of ``query``.

    They need not be the object ``query``: FSDP, DeepSpeed, backward hooks, checkpoints and tracing copy each argument.
    """
    for name, x in (('key', key), ('value', value)):
        if x is not None and x.shape != query.shape:
            raise ValueError(
                f'{name} must be None or have the shape of query, {tuple(query.shape)}, {reason}; got {tuple(x.shape)}'
            )


def key_and_value(query: Tensor, key: Tensor | None, value: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the arguments of attention, where ``key`` defaults to ``query`` and ``value`` to ``key``."""
    key = query if key is None else key
    return key, key if value is None else value


def check_key_padding_mask(
    key_padding_mask: Tensor | None, key: Tensor, name: str = 'key_padding_mask', floating: bool = False
) -> None:
    """Check that argument ``name`` is None, or bool (or float) with one entry per position of ``key`` ``(B, M, E)``."""
    if key_padding_mask is None:
        return
    if key_padding_mask.dtype != torch.bool and not (floating and key_padding_mask.is_floating_point()):
        raise TypeError(f'{name} must be bool{" or float" if floating else ""}; got {key_padding_mask.dtype}')
    if key_padding_mask.shape != key.shape[:-1]:
        shape = tuple(key_padding_mask.shape)
        raise ValueError(f'{name} must be {tuple(key.shape[:-1])}, one entry per key; got {shape}')


def check_step(x: Tensor, channels: int, position: int) -> None:
    """Check the arguments of ``step``: one token ``(n, 1, channels)`` per hypothesis, and its position."""
    check_count('position', position, least=0)
    if x.dim() != 3 or x.shape[1:] != (1, channels):
        raise ValueError(f'x must be (n, 1, {channels}), one token per hypothesis; got {tuple(x.shape)}')


def check_cached(is_causal: bool, cached: int, position: int, most: int | None = None) -> None:
    """Check that a causal layer, which caches at most ``most`` tokens, can decode the token at ``position``."""
    if not is_causal:
        raise ValueError('step without memory requires is_causal=True in the constructor')
    if cached != (position if most is None else min(position, most)):
        raise ValueError(f'position must follow the state: it holds {cached} tokens before this one; got {position}')
