"""Bilateral non-local attention (Bi-NL), section 3.4.4 of the bilateral-attention thesis."""

from mmcv.cnn import NonLocal2d
from torch import Tensor, nn
from typing_extensions import Unpack

from mmattn.ops import global_attention
from mmattn.registry import MODELS
from mmattn.utils.checks import check_count, check_map

from .channels_last import compute_channels_last
from .positions import PositionOptions, Positions, content_scale


@MODELS.register_module()
class BilateralNonLocal2d(Positions, NonLocal2d):
    """Non-local attention with position logits: each position attends to all positions of the map.

    y_i = x_i + W_out Σ_j softmax_j [θ(x_i)ᵀφ(x_j)/σc + δp(i, j)/σp] g(x_j) over all positions j (Eq. 3.9 to 3.12). A
    1×1 convolution computes the position logits δp(i, j) from x_i for offsets within the window. The window does not
    limit attention: keys outside the window get the logit of ``padding``. It extends mmcv's ``NonLocal2d``, without
    the N×N table of attention weights. With ``position='none'``, it has the same ``state_dict`` keys and output.
    Source: "The Attention Mechanism in Vision and Language Analysis", PhD thesis, UTS, 2021, section 3.4.4.

    Args:
        in_channels (int): channels C of the map.
        reduction (int): θ, φ and g have C / reduction channels. Defaults to 2.
        position (str or dict): see :class:`.PositionOptions`. 'relative' is the decomposed relative encoding of Bello
            et al., as in Table 3.2. Defaults to 'bilateral'.
        conv_cfg, norm_cfg (dict, optional): as in mmcv. The norm applies to the output projection only.
        mode (str): pairwise function of mmcv, 'embedded_gaussian' (default) unless ``position='none'``.
        use_scale (bool): with ``position='none'``, divide the content logits by √d, d = C / reduction. With positions,
            they are always divided, except with ``zero_init``. Defaults to True.
        content_smoothing (float, optional): σc, the divisor of the content logits. Defaults to √d, as above.
        zero_init (bool): as in :class:`~mmattn.layers.BilateralCrissCrossAttention`. Defaults to False.
        sub_sample (bool): keys and values are the maxima of 2×2 positions, as in mmcv. Only with ``position='none'``,
            because offsets between maxima are not defined. Defaults to False.
        zeros_init (bool): the output projection, or its norm, starts at 0, as in mmcv. Defaults to True.
        **options: ``window_size``, ``padding``, ``smoothing`` and ``max_offset``, as in ``position``.

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
        *,
        position: str | dict = 'bilateral',
        conv_cfg: dict | None = None,
        norm_cfg: dict | None = None,
        mode: str = 'embedded_gaussian',
        use_scale: bool = True,
        content_smoothing: float | None = None,
        zero_init: bool = False,
        sub_sample: bool = False,
        zeros_init: bool = True,
        **options: Unpack[PositionOptions],
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
        positions = self.choose_positions(position, options)
        stock = self.position == 'none'
        if not stock and mode != 'embedded_gaussian':
            raise ValueError(f"position={self.position!r} requires mode='embedded_gaussian'; got {mode!r}")
        if not stock and sub_sample:
            raise ValueError(f"sub_sample requires position='none'; got {self.position!r}")
        if content_smoothing is not None and mode != 'embedded_gaussian':
            raise ValueError(f"content_smoothing requires mode='embedded_gaussian'; got {mode!r}")
        channels = self.inter_channels
        scaled = use_scale or not (stock or zero_init)
        self.scale = content_scale(content_smoothing, channels**-0.5 if scaled else 1.0)
        window = dict(in_channels=in_channels, embed_channels=channels, zero_init=zero_init)
        self.build_positions(2, channels, positions, **window)

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
        return compute_channels_last(self._attend, x)

    def _attend(self, x: Tensor) -> Tensor:
        y = global_attention(**self.operands(x))
        return x + self.conv_out(y.squeeze(1).movedim(-1, 1))

    def operands(self, x: Tensor) -> dict:
        """Compute the arguments of ``global_attention`` for a map ``x`` of ``(B, C, H, W)``."""
        if self.mode != 'embedded_gaussian':
            raise ValueError(f"attention weights require mode='embedded_gaussian'; this layer has {self.mode!r}")
        query = self.theta(x).movedim(1, -1).unsqueeze(1)  # (B, 1, H, W, C / reduction), as key and value
        key = self.phi(x).movedim(1, -1).unsqueeze(1)
        value = self.g(x).movedim(1, -1).unsqueeze(1)
        position = self.position_logits(x, query)
        return dict(query=query, key=key, value=value, scale=self.scale, **position)
