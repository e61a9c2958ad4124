"""Bilateral non-local attention (Bi-NL), section 3.4.4 of the bilateral-attention thesis."""

from mmcv.cnn import NonLocal2d
from torch import Tensor, nn

from mmattn.ops import global_attention
from mmattn.registry import MODELS
from mmattn.utils.checks import check_choice, check_count, check_map, check_positive

from .attention_weights import AttentionWeights
from .relative_position import RelativePosition
from .window_position import POSITIONS, WindowPosition


@MODELS.register_module()
class BilateralNonLocal2d(AttentionWeights, NonLocal2d):
    """Non-local attention with position logits: each position attends to all positions of the map.

    y_i = x_i + W_out Σ_j softmax_j [θ(x_i)ᵀφ(x_j)/σc + δp(i, j)/σp] g(x_j) over all positions j (Eq. 3.9 to 3.12). A
    1×1 convolution computes the position logits δp(i, j) from x_i for offsets within the window. The window does not
    limit attention: keys outside the window get the logit of ``padding``. It extends mmcv's ``NonLocal2d``, without
    the N×N table of attention weights. With ``position='none'``, it has the same ``state_dict`` keys and output.
    Source: "The Attention Mechanism in Vision and Language Analysis", PhD thesis, UTS, 2021, section 3.4.4.

    Args:
        in_channels (int): channels C of the map.
        reduction (int): θ, φ and g have C / reduction channels. Defaults to 2.
        window_size, padding, smoothing, max_offset: as in :class:`~mmattn.layers.BilateralCrissCrossAttention`.
        position (str): 'bilateral' (Eq. 3.12), 'relative' (decomposed relative encoding of Bello et al., as in
            Table 3.2) or 'none' (content only). Defaults to 'bilateral'.
        conv_cfg, norm_cfg (dict, optional): as in mmcv. The norm applies to the output projection only.
        mode (str): pairwise function of mmcv, 'embedded_gaussian' (default) unless ``position='none'``.
        use_scale (bool): with ``position='none'``, divide the content logits by √d, d = C / reduction. With positions,
            they are always divided, except with ``zero_init``. Defaults to True.
        content_smoothing (float, optional): σc, the divisor of the content logits. Defaults to √d, as above.
        zero_init (bool): as in :class:`~mmattn.layers.BilateralCrissCrossAttention`. Defaults to False.
        sub_sample (bool): keys and values are the maxima of 2×2 positions, as in mmcv. Only with ``position='none'``,
            because offsets between maxima are not defined. Defaults to False.
        zeros_init (bool): the output projection, or its norm, starts at 0, as in mmcv. Defaults to True.

    Example:
        >>> layer = BilateralNonLocal2d(16, window_size=5)
        >>> layer(torch.randn(1, 16, 8, 8)).shape
        torch.Size([1, 16, 8, 8])
    """

    operator = staticmethod(global_attention)

    def __init__(
        self,
        in_channels: int,
        reduction: int = 2,
        window_size: int | tuple[int, int] = 31,
        position: str = 'bilateral',
        padding: str = 'learned',
        smoothing: str | float = 'zscore',
        max_offset: int = 96,
        conv_cfg: dict | None = None,
        norm_cfg: dict | None = None,
        mode: str = 'embedded_gaussian',
        use_scale: bool = True,
        content_smoothing: float | None = None,
        zero_init: bool = False,
        sub_sample: bool = False,
        zeros_init: bool = True,
    ) -> None:
        check_count('in_channels', in_channels)
        check_count('reduction', reduction)
        super().__init__(
            in_channels,
            reduction=reduction,
            conv_cfg=conv_cfg or dict(type='Conv2d'),
            norm_cfg=norm_cfg,
            mode=mode,
            use_scale=use_scale,
            sub_sample=sub_sample,
            zeros_init=zeros_init,
        )
        self.zeros_init = zeros_init
        check_choice('position', position, POSITIONS)
        if position != 'none' and mode != 'embedded_gaussian':
            raise ValueError(f"position={position!r} requires mode='embedded_gaussian'; got {mode!r}")
        if position != 'none' and sub_sample:
            raise ValueError(f"sub_sample requires position='none'; got {position!r}")
        channels = self.inter_channels
        self.position = position
        self.scale = channels**-0.5 if use_scale or not (position == 'none' or zero_init) else 1.0
        if content_smoothing is not None:
            if mode != 'embedded_gaussian':
                raise ValueError(f"content_smoothing requires mode='embedded_gaussian'; got {mode!r}")
            check_positive('content_smoothing', content_smoothing)
            self.scale = 1 / content_smoothing
        if position == 'bilateral':
            self.window_position = WindowPosition(
                2, in_channels, channels, window_size, channels, padding, smoothing, zero_init=zero_init
            )
        elif position == 'relative':
            self.relative_position = RelativePosition(2, channels, max_offset, zero_init=zero_init)

    def init_weights(self, std: float = 0.01, zeros_init: bool | None = None) -> None:
        """Initialise as mmcv does, and the position logits again, after the ``init_cfg`` of a backbone.

        ``zeros_init`` defaults to the argument of the constructor.
        """
        pooled = {name: part for name, part in self.named_children() if isinstance(part, nn.Sequential)}
        for name, part in pooled.items():  # mmcv expects the convolution itself
            setattr(self, name, part[0])
        super().init_weights(std, self.zeros_init if zeros_init is None else zeros_init)
        for name, part in pooled.items():
            setattr(self, name, part)
        if hasattr(self, 'window_position'):  # mmcv's constructor calls this, too
            self.window_position.init_weights()

    @property
    def attention_kinds(self) -> tuple[str, ...]:
        """The kinds of :meth:`attention_weights`; none with another ``mode``, whose weights are no softmax."""
        return super().attention_kinds if self.mode == 'embedded_gaussian' else ()

    def forward(self, x: Tensor) -> Tensor:
        """Attend over the whole map, from float ``(B, C, H, W)`` to ``(B, C, H, W)``."""
        check_map(self, x, self.in_channels)
        if self.mode != 'embedded_gaussian':
            return super().forward(x)
        y = global_attention(**self.operands(x))
        return x + self.conv_out(y.squeeze(1).movedim(-1, 1))

    def operands(self, x: Tensor) -> dict:
        """Compute the arguments of ``global_attention`` for a map ``x`` of ``(B, C, H, W)``."""
        if self.mode != 'embedded_gaussian':
            raise ValueError(f"attention weights require mode='embedded_gaussian'; this layer has {self.mode!r}")
        query = self.theta(x).movedim(1, -1).unsqueeze(1)  # (B, 1, H, W, C / reduction), as key and value
        key = self.phi(x).movedim(1, -1).unsqueeze(1)
        value = self.g(x).movedim(1, -1).unsqueeze(1)
        position = {}
        if self.position == 'bilateral':
            position = self.window_position(x)
        elif self.position == 'relative':
            position = self.relative_position.axis_bias(query * self.scale)
        return dict(query=query, key=key, value=value, scale=self.scale, **position)
