"""Attention weights of asked queries, split into content and position, for drawing (Fig. 3.4)."""

from collections.abc import Callable

import torch
from torch import Tensor

KINDS = ('content', 'position', 'bilateral')
# The operators' arguments that say where a key lies; the others are content, scale and support.
POSITION_ARGUMENTS = ('window_bias', 'window_size', 'outside_bias', 'axis_bias')


class AttentionWeights:
    """Mix-in of the attention layers: the rows of weights of asked queries, which their forward pass never keeps.

    A layer brings ``operands``, its operator's arguments from the inputs of ``forward``, and ``operator_weights``,
    which computes rows from them.
    """

    position: str
    operands: Callable[..., dict]
    operator_weights: Callable[..., Tensor]

    @property
    def attention_kinds(self) -> tuple[str, ...]:
        """What ``attention_weights`` can tell apart: with ``position='none'`` there is content alone."""
        return KINDS[:1] if self.position == 'none' else KINDS

    @torch.no_grad()
    def attention_weights(self, *inputs: Tensor | None, queries: Tensor, kind: str = 'bilateral') -> Tensor:
        """Return the weights of some queries over all keys. Only the asked rows are computed.

        Args:
            *inputs: as in ``forward``, with a batch.
            queries (Tensor): int64 ``(Q, axes)``, coordinates in the map, row first, or in the sequence.
            kind (str): 'bilateral', the weights that ``forward`` uses (whatever the position encoding); 'content', the
                softmax of the content logits alone, at the same scale; 'position', that of the position logits alone.

        Returns:
            Tensor: ``(B, heads, Q, *S)``, each row sums to 1.

        Raises:
            ValueError: an unknown ``kind``, one that the layer does not have, such as 'position' with
                ``position='none'``, or ``queries`` of another shape or outside the map.
        """
        if kind not in self.attention_kinds:
            raise ValueError(f'kind must be one of {self.attention_kinds} in this {type(self).__name__}; got {kind!r}')
        operands = self.operands(*inputs)
        del operands['value']
        if kind == 'content':
            operands = {name: x for name, x in operands.items() if name not in POSITION_ARGUMENTS}
        elif kind == 'position' and operands['query'] is not None:
            operands['query'] = torch.zeros_like(operands['query'])
            operands.pop('iterations', None)  # they refine content
        return self.operator_weights(**operands, queries=queries)
