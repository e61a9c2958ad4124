"""Fusion of a question with values, such as regions: Hadamard products, concatenation and compact bilinear pooling."""

import functools
import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from mmattn.ops.dtypes import accumulator
from mmattn.registry import MODELS
from mmattn.utils.checks import check_choice, check_count, check_counts, check_fraction

from .count_sketch import count_sketch


class PostFusionNetwork(nn.Module):
    """Blocks of three layers. The input and the output of each block skip to the output of the network.

    With 'add', a block maps C → H → H → C channels, and the output is x + h_3 + h_6 + …. With 'concat', a block ends
    with H channels, and the output is Lin([x; h_3; h_6; …]). f follows each layer of a block. The thesis of
    :class:`HadamardFusion` (section 3.4) does not name it.

    Args:
        channels, activation: C, and f, which :class:`HadamardFusion` sets.
        hidden_dim, num_blocks (int): H and the number of blocks. Default to 128 and 2.
        skip (str): 'add' (default) or 'concat'.
        dropout (float): dropout probability after each layer. The thesis found it detrimental. Defaults to 0.
    """

    def __init__(
        self,
        channels: int,
        activation: Callable[[Tensor], Tensor],
        hidden_dim: int = 128,
        num_blocks: int = 2,
        skip: str = 'add',
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_counts(channels=channels, hidden_dim=hidden_dim, num_blocks=num_blocks)
        check_choice('skip', skip, ('add', 'concat'))
        check_fraction('dropout', dropout)
        self.activation, self.skip, self.dropout = activation, skip, dropout
        last = channels if skip == 'add' else hidden_dim
        self.blocks = nn.ModuleList(
            nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise((first, hidden_dim, hidden_dim, last)))
            for first in (channels, *[last] * (num_blocks - 1))
        )
        self.out_proj = nn.Linear(channels + num_blocks * hidden_dim, channels) if skip == 'concat' else None

    def forward(self, x: Tensor) -> Tensor:
        """Compute ``(*, C)`` for ``(*, C)``."""
        outputs = [x]
        for block in self.blocks:
            h = outputs[-1]
            for layer in block:  # type: ignore[attr-defined]
                h = F.dropout(self.activation(layer(h)), self.dropout, self.training)
            outputs.append(h)
        return sum(outputs[1:], x) if self.out_proj is None else self.out_proj(torch.cat(outputs, -1))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    'identity': torch.positive,
    'leaky_relu': F.leaky_relu,
    'selu': F.selu,
    'sigmoid': torch.sigmoid,
    'tanh': torch.tanh,
    'one': torch.ones_like,
}
# Relations with a two-sided identity: 0, 1, −∞, ∞.
RELATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    'add': torch.add,
    'multiply': torch.mul,
    'max': torch.maximum,
    'min': torch.minimum,
}
SQUASHES = ('identity', 'sigmoid', 'tanh')


def _choose_per_branch(name: str, names: str | Sequence[str], count: int, choices: Sequence[str]) -> tuple[str, ...]:
    chosen = (names,) * count if isinstance(names, str) else tuple(names)
    if len(chosen) != count or any(x not in choices for x in chosen):
        raise ValueError(f'{name} must be one of {tuple(choices)}, or one for each of {count} branches; got {names!r}')
    return chosen


@MODELS.register_module()
class HadamardFusion(nn.Module):
    """Fuse a question and a value by products in R branches, which relations combine in groups.

    A branch is T_r = Φ_r(f_rq(M_r q̃ + b) ⊙ f_rv(N_r ṽ + b')) (Eq. 3.10). Relation ⊕_b folds the branches of group b,
    and the groups are combined in their order, u ← u ⊕_b u_b (Algorithm 1). Configurations:

    * MUTAN: the defaults. MLB: ``num_branches=1``.
    * Nonlinearity ensembles (NE): ``value_activation='selu'`` and
      ``query_activation=('identity', 'leaky_relu', 'selu', 'sigmoid', 'tanh')``.
    * Feature gating (FG): ``relations=('add', 'multiply')``, ``groups=((0, 1, 2, 3), (4,))`` and
      ``squash=('identity',) * 4 + ('sigmoid',)``. The last branch is the gate. Polarity swap (PS): 'tanh' in place of
      'sigmoid'. FG + PS: three relations, the groups (0, 1, 2), (3,) and (4,).
    * Post-fusion networks Φ: ``post_network=dict()``.
    * Element-wise product: ``num_branches=1, project=False``. Element-wise sum: ``num_branches=2``,
      ``query_activation=('identity', 'one')``, ``value_activation=('one', 'identity')``.

    Source: "Attention and Fusion of Deep Representations for Computer Vision", master's thesis, University of Guelph,
    2020, sections 3.3 and 3.4.

    Args:
        query_dim, value_dim, out_dim (int): channels t_q, t_v and t_o.
        num_branches (int): R. Defaults to 5.
        query_activation, value_activation (str or sequence of str): f_rq and f_rv, one for all or one per branch:
            'identity', 'leaky_relu' (slope 0.01), 'selu', 'sigmoid', 'tanh' or 'one' (1 in place of the factor).
            Default to 'identity'.
        relations (sequence of str): ⊕ of each group: 'add', 'multiply', 'max' or 'min'. Defaults to ('add',).
        groups (sequence of sequence of int, optional): the branches of each group. Each branch from 0 to R − 1 belongs
            to one group. Defaults to one group of all branches.
        squash (str or sequence of str): function of T_r, one for all or one per branch: 'identity' (default), 'sigmoid'
            or 'tanh'.
        project (bool): multiply by M_r and N_r. If False, all branches read q̃ and ṽ, and t_q = t_v = t_o. Defaults to
            True.
        post_network (dict, optional): options of :class:`.PostFusionNetwork` for Φ_r, except ``channels`` and
            ``activation``, which is f_rq. Defaults to None, the identity.
        chunk_size (int, optional): fuse this many positions of a sequence at a time, and again in the backward pass. A
            tensor takes R · t_o numbers per position, so chunks save memory. Defaults to all positions.

    Example:
        >>> fusion = HadamardFusion(310, 620, 510)
        >>> fusion(torch.randn(2, 310), torch.randn(2, 620)).shape
        torch.Size([2, 510])
    """

    def __init__(
        self,
        query_dim: int,
        value_dim: int,
        out_dim: int,
        num_branches: int = 5,
        query_activation: str | Sequence[str] = 'identity',
        value_activation: str | Sequence[str] = 'identity',
        relations: Sequence[str] = ('add',),
        groups: Sequence[Sequence[int]] | None = None,
        squash: str | Sequence[str] = 'identity',
        project: bool = True,
        post_network: dict | None = None,
        chunk_size: int | None = None,
    ) -> None:
        super().__init__()
        check_counts(query_dim=query_dim, value_dim=value_dim, out_dim=out_dim, num_branches=num_branches)
        if chunk_size is not None:
            check_count('chunk_size', chunk_size)
        if isinstance(relations, str) or not relations or any(x not in RELATIONS for x in relations):
            raise ValueError(
                f'relations must be one or more of {tuple(RELATIONS)}, with a two-sided identity; got {relations!r}'
            )
        groups = (tuple(range(num_branches)),) if groups is None else tuple(map(tuple, groups))
        if sorted(r for group in groups for r in group) != [*range(num_branches)] or () in groups:
            raise ValueError(
                f'groups must not be empty, and contain each branch from 0 to {num_branches - 1} once; got {groups}'
            )
        if len(relations) != len(groups):
            raise ValueError(f'relations must have one entry per group; got {tuple(relations)} for the groups {groups}')
        if not project and not query_dim == value_dim == out_dim:
            raise ValueError(
                'project=False requires query_dim, value_dim and out_dim to be equal; got '
                f'{query_dim}, {value_dim} and {out_dim}'
            )
        self.query_dim, self.value_dim = query_dim, value_dim
        self.query_activation = _choose_per_branch('query_activation', query_activation, num_branches, [*ACTIVATIONS])
        self.value_activation = _choose_per_branch('value_activation', value_activation, num_branches, [*ACTIVATIONS])
        self.squash = _choose_per_branch('squash', squash, num_branches, SQUASHES)
        self.relations, self.groups, self.chunk_size = tuple(relations), groups, chunk_size
        # One product for all branches.
        self.query_proj = nn.Linear(query_dim, num_branches * out_dim) if project else None
        self.value_proj = nn.Linear(value_dim, num_branches * out_dim) if project else None
        self.post_networks = None
        if post_network is not None:
            self.post_networks = nn.ModuleList(
                PostFusionNetwork(out_dim, ACTIVATIONS[name], **post_network) for name in self.query_activation
            )

    def forward(self, query: Tensor, value: Tensor) -> Tensor:
        """Compute u, ``(*, t_o)``, from q̃, float ``(*, t_q)``, and ṽ, float ``(*, t_v)``.

        The other dimensions are broadcast, for example one question ``(B, 1, t_q)`` with n positions ``(B, n, t_v)``.
        """
        if query.shape[-1:] != (self.query_dim,) or value.shape[-1:] != (self.value_dim,) or query.dim() != value.dim():
            raise ValueError(
                f'query and value must be (*, {self.query_dim}) and (*, {self.value_dim}), with the same number of '
                f'dimensions; got {tuple(query.shape)} and {tuple(value.shape)}'
            )
        q = self._branches(self.query_proj, query)
        if self.chunk_size is None or value.dim() < 3:
            return self._fused(q, value)
        random = self.post_networks is not None and any(network.dropout for network in self.post_networks)
        again = functools.partial(checkpoint, self._fused, use_reentrant=False, preserve_rng_state=random)
        fused = []
        for start in range(0, max(1, value.shape[-2]), self.chunk_size):
            part = slice(start, start + self.chunk_size)
            factors = q if q.shape[-3] == 1 else q[..., part, :, :]
            fused.append(again(factors, value[..., part, :]))
        return torch.cat(fused, -2)

    def _branches(self, projection: nn.Linear | None, x: Tensor) -> Tensor:
        count = len(self.squash)
        if projection is None:
            return x.unsqueeze(-2).expand(*x.shape[:-1], count, -1)
        return projection(x).unflatten(-1, (count, -1))

    def _fused(self, q: Tensor, value: Tensor) -> Tensor:
        # Algorithm 1. ``q`` has the factors of the query, ``(*, R, t_o)``, and ``value`` is ṽ.
        branches = []
        for r, (x, y) in enumerate(zip(q.unbind(-2), self._branches(self.value_proj, value).unbind(-2))):
            t = ACTIVATIONS[self.query_activation[r]](x) * ACTIVATIONS[self.value_activation[r]](y)
            if self.post_networks is not None:
                t = self.post_networks[r](t)
            branches.append(ACTIVATIONS[self.squash[r]](t))
        # The folds start without the identities of the relations, so that no infinity occurs.
        relations = [RELATIONS[name] for name in self.relations]
        folded = [functools.reduce(f, [branches[r] for r in group]) for f, group in zip(relations, self.groups)]
        out = folded[0]
        for relation, group in zip(relations[1:], folded[1:]):
            out = relation(out, group)
        return out


@MODELS.register_module()
class ConcatFusion(nn.Module):
    """Fuse a question and a value by one or two layers that read their concatenation.

    Source: a baseline in section 3.2 of the thesis of :class:`HadamardFusion`.

    Args:
        query_dim, value_dim, out_dim (int): channels of both inputs and of the output.
        hidden (bool): add a hidden layer of ``out_dim`` channels with ReLU. Defaults to False.

    Example:
        >>> ConcatFusion(310, 620, 510)(torch.randn(2, 1, 310), torch.randn(2, 9, 620)).shape
        torch.Size([2, 9, 510])
    """

    def __init__(self, query_dim: int, value_dim: int, out_dim: int, hidden: bool = False) -> None:
        super().__init__()
        check_counts(query_dim=query_dim, value_dim=value_dim, out_dim=out_dim)
        first = nn.Linear(query_dim + value_dim, out_dim)
        self.layers = nn.Sequential(first, nn.ReLU(), nn.Linear(out_dim, out_dim)) if hidden else first

    def forward(self, query: Tensor, value: Tensor) -> Tensor:
        """Compute ``(*, out_dim)`` from ``(*, query_dim)`` and ``(*, value_dim)``, which are broadcast."""
        shape = torch.broadcast_shapes(query.shape[:-1], value.shape[:-1])
        return self.layers(torch.cat([x.expand(*shape, -1) for x in (query, value)], -1))


NOISE = 32  # of a Fourier transform, in roundings of the largest number of a sketch


@MODELS.register_module()
class MCBFusion(nn.Module):
    """Fuse a question and a value by the count sketch of their outer product, and a linear layer.

    u = Lin(irfft(rfft(Ψ(q)) ⊙ rfft(Ψ(v)))). The circular convolution of two count sketches Ψ with separate random
    hashes is the count sketch of the outer product. The hashes are fixed and saved with the weights.

    Source: Fukui et al., "Multimodal Compact Bilinear Pooling for Visual Question Answering and Visual Grounding",
    2016, a baseline in chapter 3 of the thesis of :class:`HadamardFusion`.

    Args:
        query_dim, value_dim, out_dim (int): channels of both inputs and of the output.
        sketch_dim (int): d. Defaults to 16000.
        normalize (bool): apply sign(u)√|u| and L2 normalisation before the linear layer. Defaults to True.
        seed (int): seed of the hashes. Defaults to 0.

    Example:
        >>> fusion = MCBFusion(16, 32, 8, sketch_dim=500)
        >>> fusion(torch.randn(2, 1, 16), torch.randn(2, 36, 32)).shape
        torch.Size([2, 36, 8])
    """

    query_sign: Tensor

    def __init__(
        self,
        query_dim: int,
        value_dim: int,
        out_dim: int,
        sketch_dim: int = 16000,
        normalize: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_counts(query_dim=query_dim, value_dim=value_dim, out_dim=out_dim, sketch_dim=sketch_dim)
        check_count('seed', seed, least=0)
        self.sketch_dim, self.normalize = sketch_dim, normalize
        generator = torch.Generator().manual_seed(seed)
        for name, channels in (('query', query_dim), ('value', value_dim)):
            index = torch.randint(sketch_dim, (channels,), generator=generator, device='cpu')
            sign = torch.randint(2, (channels,), generator=generator, device='cpu') * 2.0 - 1
            self.register_buffer(f'{name}_index', index.to(torch.get_default_device()))
            self.register_buffer(f'{name}_sign', sign.to(torch.get_default_device()))
        self.out_proj = nn.Linear(sketch_dim, out_dim)

    def forward(self, query: Tensor, value: Tensor) -> Tensor:
        """Compute u, ``(*, out_dim)``, from ``(*, query_dim)`` and ``(*, value_dim)``, which are broadcast."""
        u = self.sketch(query, value)
        if self.normalize:
            # The gradient of the root is infinite at 0, which is noise after the Fourier transform.
            size = u.abs()
            nonzero = size > NOISE * torch.finfo(u.dtype).eps * size.detach().amax(-1, keepdim=True)
            u = F.normalize((u.sign() * size.where(nonzero, 1).sqrt()).where(nonzero, 0), dim=-1)
        weight = self.out_proj.weight  # a method if the layer is quantized; FSDP computes in another dtype than buffers
        return self.out_proj(u.to(weight.dtype if isinstance(weight, Tensor) else self.query_sign.dtype))

    def sketch(self, query: Tensor, value: Tensor) -> Tensor:
        """Compute the count sketch of the outer product, ``(*, d)``: float64 for float64 inputs, otherwise float32."""
        spectra = []
        for name, x in (('query', query), ('value', value)):
            index, sign = getattr(self, f'{name}_index'), getattr(self, f'{name}_sign')
            if x.shape[-1:] != index.shape:
                raise ValueError(f'{name} must be (*, {len(index)}); got {tuple(x.shape)}')
            x = x.to(accumulator(x))  # the transform has no bfloat16
            if not x.numel():  # the transform takes no empty tensor
                return x.new_zeros(*torch.broadcast_shapes(query.shape[:-1], value.shape[:-1]), self.sketch_dim)
            spectra.append(torch.fft.rfft(count_sketch(x, index, sign.to(x.dtype), self.sketch_dim)))
        return torch.fft.irfft(spectra[0] * spectra[1], self.sketch_dim)
