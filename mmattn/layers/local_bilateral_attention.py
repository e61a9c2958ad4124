"""Local bilateral attention (BA), chapter 4 of the bilateral-attention thesis."""

from collections import OrderedDict

from mmcv.cnn import build_activation_layer, build_norm_layer
from torch import Tensor, nn

from mmattn.ops import local_attention, local_attention_weights, projection
from mmattn.ops.checks import check_count, check_divisor, check_number
from mmattn.ops.window_bias import as_window_size
from mmattn.registry import MODELS

from .attention_weights import KINDS, AttentionWeights


@MODELS.register_module()
class LocalBilateralAttention(AttentionWeights, nn.Module):
    """Attention over the k×k neighbourhood of each position, by content, by geometry, or by both.

    y_i = W_out Σ_j softmax_j [(W_σ x_i)ᵀ(W_φ x_j) + W_γ[j,·]·(W_σ x_i)] W_β x_j for each of M heads (Eq. 4.2, 4.6 to
    4.9), over the neighbours j on the map. Table 4.2's ten counts of parameters pin down the rest: W_γ is one 1×1 layer
    from all channels of the projected query to M·k² logits; each projection has a bias and a norm. With ``share`` one
    projection without either serves as σ, φ and β, γ has neither, and only the output keeps both.

    Args:
        in_channels (int): channels of the map.
        out_channels (int, optional): channels of the output, and of the projections. Defaults to ``in_channels``.
        kernel_size (int or tuple[int, int]): odd k. Defaults to 3.
        num_heads (int): M, a divisor of ``out_channels``. Defaults to 8.
        content (bool): use the content logits. Defaults to True.
        geometric (bool): use the geometric logits. Defaults to True.
        iterations (int): T softmax passes of iterative refinement of the content logits (Algorithm 1); more than one
            wants ``share``, as keys and values are to come from one space. Defaults to 1.
        share (bool): one projection for query, key and value. Defaults to False.
        dilation (int): step between the positions of a neighbourhood. Defaults to 1.
        scale (float, optional): factor of the content logits, None for 1/√d; the thesis has none. Defaults to 1.0.
        norm_cfg (dict, optional): norm of the projections, of each channel by itself: 'BN', 'SyncBN', 'IN'. Without,
            content logits want ``scale=None``. Defaults to batch norm.
        act_cfg (dict, optional): activation of the output. Defaults to ReLU.

    Raises:
        TypeError: channels, heads, ``dilation`` or ``iterations`` are no integers, or ``scale`` is no number.
        ValueError: an even kernel, heads that do not divide the channels, neither content nor geometry, more
            iterations without ``share`` or without content, iterations or a dilation below 1, a norm over groups of
            channels.
    """

    operator_weights = staticmethod(local_attention_weights)

    def __init__(
        self,
        in_channels: int,
        out_channels: int | None = None,
        kernel_size: int | tuple[int, int] = 3,
        num_heads: int = 8,
        content: bool = True,
        geometric: bool = True,
        iterations: int = 1,
        share: bool = False,
        dilation: int = 1,
        scale: float | None = 1.0,
        norm_cfg: dict | None = dict(type='BN'),
        act_cfg: dict | None = dict(type='ReLU'),
    ) -> None:
        super().__init__()
        out_channels = in_channels if out_channels is None else out_channels
        sizes = as_window_size(kernel_size, axes=2, name='kernel_size')
        check_count('in_channels', in_channels)
        check_divisor('num_heads', num_heads, 'out_channels', out_channels)
        if scale is not None:
            check_number('scale', scale)
        if not (content or geometric):
            raise ValueError('content and geometric cannot both be False')
        check_count('dilation', dilation)
        check_count('iterations', iterations)
        if iterations > 1 and not (content and share):
            raise ValueError(
                f'iterations={iterations} refines content in one shared space: it needs content=True and '
                f'share=True; got content={content}, share={share}'
            )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.num_heads = num_heads
        self.content = content
        self.geometric = geometric
        self.share = share
        self.scale = scale
        self.settings = dict(kernel_size=sizes, dilation=dilation, iterations=iterations)
        # σ, φ and β read the same map: one layer makes them, in this order; by geometry alone there is no φ.
        parts = 1 if share else 3 if content else 2
        bias, inner_norm = (False, None) if share else (True, norm_cfg)
        self.projection = pointwise(in_channels, parts * out_channels, bias, inner_norm)
        if geometric:
            self.gamma = pointwise(out_channels, num_heads * sizes[0] * sizes[1], bias, inner_norm)
        self.output = pointwise(out_channels, out_channels, True, norm_cfg)
        if act_cfg is not None and act_cfg['type'] == 'ReLU':
            act_cfg = {'inplace': True, **act_cfg}  # as ConvModule has it
        self.activate = nn.Identity() if act_cfg is None else build_activation_layer(act_cfg)

    def init_weights(self) -> None:
        """Give every parameter its initial value anew; ``ConvModule`` leaves a layer that can do so alone."""
        for module in self.modules():
            reset = getattr(module, 'reset_parameters', None)
            if reset is not None:
                reset()

    @property
    def attention_kinds(self) -> tuple[str, ...]:
        """What ``attention_weights`` can tell apart."""
        return KINDS if self.content and self.geometric else KINDS[:1] if self.content else KINDS[1:2]

    def extra_repr(self) -> str:
        """Return what the submodules do not show."""
        switches = {name: getattr(self, name) for name in ('num_heads', 'content', 'geometric', 'share', 'scale')}
        return ', '.join(f'{name}={value}' for name, value in {**self.settings, **switches}.items())

    def forward(self, x: Tensor) -> Tensor:
        """Attend to the neighbourhood of each position.

        Args:
            x (Tensor): ``(B, in_channels, H, W)``.

        Returns:
            Tensor: ``(B, out_channels, H, W)``.
        """
        y = local_attention(**self.operands(x))
        return self.activate(project(self.output, y.movedim(1, -2).flatten(-2).movedim(-1, 1)))

    def operands(self, x: Tensor) -> dict:
        """Return the arguments of ``local_attention`` for a map ``x`` of ``(B, in_channels, H, W)``."""
        projected = project(self.projection, x).split(self.out_channels, 1)
        window = self._heads(project(self.gamma, projected[0])) if self.geometric else None
        heads = [self._heads(part) for part in projected]
        query, key = (heads[0], heads[0 if self.share else 1]) if self.content else (None, None)
        return dict(query=query, key=key, value=heads[-1], scale=self.scale, window_bias=window, **self.settings)

    def _heads(self, x: Tensor) -> Tensor:
        """View ``(B, M·C, H, W)`` as ``(B, M, H, W, C)``."""
        # Channels last meanwhile, lest a view next to a batch of one gives that a stride that tells no layout.
        return x.movedim(1, -1).unflatten(-1, (self.num_heads, -1)).movedim(-2, 1)


def project(layer: nn.Sequential, x: Tensor) -> Tensor:
    """Apply what ``pointwise`` made to a map ``(B, C, H, W)``, or to some of its channels.

    In channels-last that is a projection of rows; a convolution would copy some of the channels first.
    """
    conv = layer[0]
    if x.stride(1) != 1 or type(conv) is not nn.Conv2d:
        return layer(x)
    y = projection(x.movedim(1, -1), conv.weight.flatten(1), conv.bias)
    return layer[1:](y.movedim(-1, 1))


def pointwise(in_channels: int, out_channels: int, bias: bool, norm_cfg: dict | None = None) -> nn.Sequential:
    """A 1×1 convolution and its norm. mmcv's ConvModule warns of a bias before a norm, which the counts ask for."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(conv=nn.Conv2d(in_channels, out_channels, 1, bias=bias))
    if norm_cfg is not None:
        if norm_cfg['type'] in ('GN', 'LN', 'LN2d'):
            # One layer makes several projections, and γ's channels are rarely a multiple of the groups.
            raise ValueError(f'norm_cfg must be a norm of single channels, such as BN; got {norm_cfg}')
        layers['norm'] = build_norm_layer(norm_cfg, out_channels)[1]
    return nn.Sequential(layers)
