"""The positions of Bi-NL, Bi-CC and Bi-SA: their options, and the logits that they add (Eq. 3.9 to 3.12)."""

from typing import Any, TypedDict

from torch import Tensor

from mmattn.ops import grid_attention
from mmattn.utils.checks import check_choice, check_positive

from .attention_weights import AttentionWeights
from .relative_position import RelativePosition
from .window_position import WindowPosition

POSITIONS = ('none', 'bilateral', 'relative')  # no positions, windows, relative encoding


class PositionOptions(TypedDict, total=False):
    """The options of positions: in ``position``, or beside it.

    ``position=dict(type='bilateral', window_size=15)`` and ``position='bilateral', window_size=15`` are the same.

    Args:
        type (str): the value of ``position`` itself: 'bilateral' (Eq. 3.12), 'relative' or 'none' (content only).
            Defaults to 'bilateral'.
        window_size (int or tuple[int, ...]): with 'bilateral', odd lengths of the position windows, for all axes or for
            each axis. Defaults to 31, and to 21 for sequences. A causal layer uses the (k + 1)/2 entries with j ≤ i: 21
            corresponds to 21 in the encoder and 11 in the decoder of the thesis (Table 3.7).
        padding (str): with 'bilateral', the logit of keys outside the window: 'learned', 'zero', 'neg_inf', or the
            'mean' or 'min' of the logits within the window (Tables 3.3 and 3.6). Defaults to 'learned', and to 'zero'
            for sequences.
        smoothing (str or float): with 'bilateral', how position logits are scaled: 'zscore' (normalised over the keys
            of a query, not with 'neg_inf'), 'sqrt_dim' (divided by √d, d the channels of q), or a number σp. Defaults
            to 'zscore', and to 'sqrt_dim' for sequences.
        max_offset (int): with 'relative', offsets are clipped to ±``max_offset``. Defaults to 96.
    """

    window_size: int | tuple[int, ...]
    padding: str
    smoothing: str | float
    max_offset: int


class Positions(AttentionWeights):
    """Mix-in of Bi-NL, Bi-CC and Bi-SA: they add position logits, by :class:`PositionOptions`, to content logits."""

    position_options = PositionOptions(window_size=31, padding='learned', smoothing='zscore', max_offset=96)
    scale: float  # of the content logits

    def choose_positions(self, position: str | dict, options: PositionOptions) -> dict[str, Any]:
        """Set the attribute ``position``, and return all options of positions."""
        chosen = dict(position) if isinstance(position, dict) else dict(type=position)
        self.position = chosen.pop('type', 'bilateral')
        check_choice('position', self.position, POSITIONS)
        if unknown := {*chosen, *options} - {*self.position_options}:  # not every position would read them
            raise TypeError(f'{type(self).__name__}() got an unexpected keyword argument {min(unknown)!r}')
        if twice := chosen.keys() & options:
            raise ValueError(f'{min(twice)} is given in position={position} and beside it')
        return {**self.position_options, **chosen, **options}

    def build_positions(
        self, axes: int, dim: int, options: dict[str, Any], zero_init: Any = False, **window: Any
    ) -> None:
        """Build the position logits for queries of ``dim`` channels. ``window`` are arguments of WindowPosition."""
        max_offset = options.pop('max_offset')
        if self.position == 'bilateral':
            self.window_position = WindowPosition(axes, dim=dim, zero_init=zero_init, **options, **window)
        elif self.position == 'relative':
            self.relative_position = RelativePosition(axes, dim, max_offset, zero_init=zero_init)

    def position_logits(self, x: Tensor, query: Tensor, key_mask: Tensor | None = None) -> dict:
        """Compute the position arguments of the operator from the feature, or from the queries."""
        if self.position == 'bilateral':
            return self.window_position(x, key_mask)
        if self.position == 'relative':
            encoding, query = self.relative_position, query * self.scale
            return encoding.arm_bias(query) if self.operator is grid_attention else encoding.axis_bias(query)
        return {}


def content_scale(smoothing: float | None, default: float) -> float:
    """Compute the factor 1/σc of the content logits from the argument ``content_smoothing``."""
    if smoothing is None:
        return default
    check_positive('content_smoothing', smoothing)
    return 1 / smoothing
