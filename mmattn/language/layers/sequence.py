"""What the layers for sequences share: argument checks, sinusoids, and the base class of the convolutions."""

import math

import torch
from torch import Tensor, nn

from mmattn.utils.checks import check_count

State = dict[str, Tensor]


def check_sequence(name: str, x: Tensor, channels: int) -> None:
    """Check that the argument ``name`` is a batch of sequences ``(B, L, channels)``."""
    if x.dim() != 3 or x.shape[-1] != channels:
        raise ValueError(f'{name} must be (B, L, {channels}); got {tuple(x.shape)}')


def check_key_padding_mask(key_padding_mask: Tensor | None, key: Tensor, name: str = 'key_padding_mask') -> None:
    """Check that the argument ``name`` is None, or bool with one entry per position of ``key`` ``(B, M, E)``."""
    if key_padding_mask is None:
        return
    if key_padding_mask.dtype != torch.bool:
        raise TypeError(f'{name} must be bool; got {key_padding_mask.dtype}')
    if key_padding_mask.shape != key.shape[:-1]:
        found = tuple(key_padding_mask.shape)
        raise ValueError(f'{name} must be {tuple(key.shape[:-1])}, one entry per key; got {found}')


def check_step(x: Tensor, channels: int, position: int) -> None:
    """Check the arguments of ``step``: one token ``(n, 1, channels)`` and its position."""
    check_count('position', position, least=0)
    if x.dim() != 3 or x.shape[1:] != (1, channels):
        raise ValueError(f'x must be (n, 1, {channels}), one token per hypothesis; got {tuple(x.shape)}')


def check_cached(causal: bool, cached: int, position: int, most: int | None = None) -> None:
    """Check that a layer can decode the token at ``position`` from a state that holds ``cached`` tokens.

    Args:
        causal (bool): whether the layer is causal.
        cached (int): number of tokens in the state.
        position (int): position of the token.
        most (int, optional): number of tokens that the layer caches at most. Defaults to no limit.
    """
    if not causal:
        raise ValueError('step without memory requires causal=True in the constructor')
    if cached != (position if most is None else min(position, most)):
        raise ValueError(f'position must follow the state: it holds {cached} tokens before this one; got {position}')


def sinusoids(positions: Tensor, channels: int) -> Tensor:
    """Return the sinusoidal encodings of positions: channels 2c and 2c + 1 are sin and cos of t · 10000^(−2c/C).

    Args:
        positions (Tensor): any shape ``(*)``; integer or float.
        channels (int): C, even.

    Returns:
        Tensor: float ``(*, C)``; float64 for float64 positions, otherwise float32.

    Example:
        >>> sinusoids(torch.arange(3), 4)[0]
        tensor([0., 1., 0., 1.])
    """
    dtype = torch.promote_types(positions.dtype, torch.float32) if positions.is_floating_point() else torch.float32
    rates = torch.exp(
        torch.arange(0, channels, 2, device=positions.device, dtype=dtype) * (-math.log(10000) / channels)
    )
    angles = positions[..., None].to(dtype) * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)


class SequenceConv(nn.Module):
    """Base of the convolutions of a sequence, with the interface of attention.

    A subclass defines ``convolve`` and ``step``.

    Args:
        embed_dim (int): channels E of the sequence.
        causal (bool): position t depends only on positions up to t.

    Raises:
        TypeError: ``embed_dim`` is not an integer.
        ValueError: ``embed_dim`` is below 1.
    """

    def __init__(self, embed_dim: int, causal: bool) -> None:
        super().__init__()
        check_count('embed_dim', embed_dim)
        self.embed_dim = embed_dim
        self.causal = causal

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None
    ) -> tuple[Tensor, None]:
        """Convolve the sequence.

        Args:
            query (Tensor): float ``(B, L, E)``.
            key, value (Tensor): the object ``query`` itself.
            key_padding_mask (Tensor, optional): bool ``(B, L)``, True where a position is padding, to the right of the
                sentence. The outputs of the other positions do not depend on it.

        Returns:
            tuple[Tensor, None]: ``(B, L, E)``, and None, in place of attention weights.

        Raises:
            TypeError: ``key_padding_mask`` is not bool.
            ValueError: ``key`` or ``value`` is not ``query``, or a shape does not fit.
        """
        if key is not query or value is not query:
            raise ValueError(f'key and value must be query itself: {type(self).__name__} convolves one sequence')
        check_sequence('query', query, self.embed_dim)
        check_key_padding_mask(key_padding_mask, query)
        return self.convolve(query, key_padding_mask), None

    def convolve(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Convolve ``(B, L, E)``."""
        raise NotImplementedError

    def start(self, memory: Tensor | None = None, key_padding_mask: Tensor | None = None) -> State:
        """Return the state before the first token: an empty dict.

        Args:
            memory, key_padding_mask: must be None; they are arguments of attention to another sequence.

        Raises:
            ValueError: ``memory`` or ``key_padding_mask`` is given.
        """
        if memory is not None or key_padding_mask is not None:
            raise ValueError(f'memory and key_padding_mask must be None: {type(self).__name__} convolves one sequence')
        return {}

    def step(self, x: Tensor, state: State, position: int) -> tuple[Tensor, State]:
        """Compute the output at one position from the inputs up to it, as ``forward`` of a causal layer does.

        Args:
            x (Tensor): float ``(n, 1, E)``, the token at ``position`` of n hypotheses.
            state (dict[str, Tensor]): state after the tokens before it. The first dimension of its tensors is n. It is
                not changed.
            position (int): position of the token, from 0.

        Returns:
            tuple[Tensor, dict[str, Tensor]]: ``(n, 1, E)``, and the state after the token.

        Raises:
            TypeError: ``position`` is not an integer.
            ValueError: the layer is not causal, a shape does not fit, or the state is not that of ``position``.
        """
        raise NotImplementedError
