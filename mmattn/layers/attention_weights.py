"""Attention weights of selected queries, by content, by position or by both, for drawing (Fig. 3.4)."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from mmattn.ops import attention_rows

KINDS = ('content', 'position', 'bilateral')
# The terms of Transformer attention that a kind of weights uses, as switches β1 β2 β3 β4.
SWITCHES = dict(content='1010', position='0101', bilateral='1111', E1='1000', E2='0100', E3='0010', E4='0001')
# The arguments of the operators that depend on the position of a key; the others are content, scale and support.
POSITION_ARGUMENTS = ('window_bias', 'window_size', 'outside_bias', 'axis_bias')


class AttentionWeights:
    """Mix-in for attention layers: computes attention rows for selected queries. ``forward`` does not store them.

    ``operands`` of a subclass returns the arguments of its ``operator`` for the inputs of ``forward``.
    """

    position: str
    operands: Callable[..., dict]
    operator: Callable[..., Any]
    attention_terms: tuple[str, ...] = ()  # further values of ``kind``: single terms of the logits

    @property
    def attention_kinds(self) -> tuple[str, ...]:
        """The values of ``kind`` that ``attention_weights`` accepts: 'content' only with ``position='none'``."""
        return KINDS[:1] if self.position == 'none' else KINDS

    @torch.no_grad()
    def attention_weights(
        self, *inputs: Tensor | None, queries: Tensor, kind: str = 'bilateral', **more: Tensor | None
    ) -> Tensor:
        """Compute the attention weights of selected queries over all keys, which takes a forward and a backward pass.

        Args:
            *inputs, **more: as in ``forward``, with a batch dimension.
            queries (Tensor): int64 ``(Q, axes)``, coordinates in the map (row first) or in the sequence of queries.
            kind (str): one of ``attention_kinds``: 'bilateral' (the weights that ``forward`` uses, for every position
                encoding), 'content' (the softmax of the content logits only, with the same scale) or 'position' (the
                softmax of the position logits only). In Transformer attention, E1 and E3 are content, E2 and E4 are
                position, and 'E1' to 'E4' (those in ``attention_terms``) are the softmax of one term only. Defaults to
                'bilateral', which a layer with a softmax for each kind does not have.

        Returns:
            Tensor: ``(B, heads, Q, *S)`` over the positions ``*S`` of the keys. Each row sums to 1.
        """
        kinds = self.attention_kinds + self.attention_terms
        if kinds and kind not in kinds:  # without kinds, `operands` raises an error with the reason
            raise ValueError(f'kind must be one of {kinds} in this {type(self).__name__}; got {kind!r}')
        operands = self._operands_by_kind(kind, *inputs, **more)
        return attention_rows(self.operator, **operands, queries=queries)

    def _operands_by_kind(self, kind: str, *inputs: Tensor | None, **more: Tensor | None) -> dict:
        operands = self.operands(*inputs, **more)
        if kind == 'content':
            operands = {name: x for name, x in operands.items() if name not in POSITION_ARGUMENTS}
        elif kind == 'position' and operands['query'] is not None:
            operands['query'] = torch.zeros_like(operands['query'])
            operands.pop('iterations', None)  # they refine content
        return operands


def check_terms(terms: str) -> None:
    """Check that ``terms`` is a string of the four switches β1 β2 β3 β4."""
    if not isinstance(terms, str) or len(terms) != 4 or set(terms) - set('01'):
        raise ValueError(f"terms must be a string of four digits '0' or '1'; got {terms!r}")


class TermWeights(AttentionWeights):
    """Mix-in for four terms: ``operands`` also takes ``used``, switches of the terms to use if ``terms`` has them."""

    terms: str
    query_bias: bool
    query_bias_key: str  # what the keys of a query's bias begin with in a checkpoint

    @property
    def attention_kinds(self) -> tuple[str, ...]:
        """The values of ``kind`` for parts or all of the logits, depending on ``terms``."""
        content, position = '1' in self.terms[::2], '1' in self.terms[1::2]
        return tuple(kind for kind, exists in zip(KINDS, (content, position, content == position)) if exists)

    @property
    def attention_terms(self) -> tuple[str, ...]:  # type: ignore[override]
        """The values of ``kind`` for a single term, 'E1' to 'E4', depending on ``terms``."""
        return tuple(f'E{number}' for number, switch in enumerate(self.terms, 1) if switch == '1')

    def switches(self, used: str) -> tuple[bool, ...]:
        """For each term, check that it is in ``terms`` and in ``used``."""
        return tuple(exists == switch == '1' for exists, switch in zip(self.terms, used))

    def _operands_by_kind(self, kind: str, *inputs: Tensor | None, **more: Tensor | None) -> dict:
        return self.operands(*inputs, used=SWITCHES[kind], **more)

    def _warn_of_query_bias(self) -> None:
        """Warn of terms that the bias of the query adds to others. No term without a query has one."""
        pairs = zip(('E3', 'E4'), self.terms[:2], self.terms[2:])
        added = ' and '.join(term for term, with_query, without in pairs if with_query > without)
        if self.query_bias and added:
            warnings.warn(f'terms={self.terms!r} with query_bias=True computes {added}, too, of the bias', stacklevel=3)

    def _load_from_state_dict(self, state_dict: Mapping[str, Tensor], prefix: str, *args: Any) -> None:
        """Refuse the bias of a query, which a layer without it would drop.

        Raises:
            ValueError: the checkpoint has the bias, and the layer the query alone.
        """
        key = prefix + self.query_bias_key
        if '1' in self.terms[:2] and not self.query_bias and any(name.startswith(key) for name in state_dict):
            raise ValueError(
                f'the checkpoint has {key}: it was trained with a bias of the query, so its layers need query_bias=True'
            )
        super()._load_from_state_dict(state_dict, prefix, *args)  # type: ignore[misc]
