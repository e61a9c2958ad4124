"""Local bilateral attention as a ``conv_cfg``: replaces the 3×3 convolutions of existing modules."""

from typing import TypedDict

from torch import nn
from torch.nn.modules.utils import _pair
from typing_extensions import Unpack

from mmattn.ops.arguments import as_window_size
from mmattn.registry import MODELS
from mmattn.utils.checks import check_count

from .local_bilateral_attention import LocalBilateralAttention, pointwise


class BilateralOptions(TypedDict, total=False):
    """The options of :class:`~mmattn.layers.LocalBilateralAttention` that a convolution does not have."""

    num_heads: int
    content: bool
    geometric: bool
    iterations: int
    share: bool
    scale: float | None
    norm_cfg: dict | None
    factorised: bool
    late_fusion: bool
    matching: str


@MODELS.register_module()
class BAConv2d(LocalBilateralAttention):
    """Local bilateral attention with the interface of ``nn.Conv2d``, for ``conv_cfg=dict(type='mmattn.BAConv2d', …)``.

    The call returns a plain ``nn.Conv2d``, which is not an instance of this class, when attention cannot replace the
    convolution: ``kernel_size`` is 1 in both directions, ``stride`` is not 1 in a direction, or ``groups`` is not 1.
    The arguments of attention are then not used. The ``ConvModule`` around it applies the last norm and the activation.
    Source: "The Attention Mechanism in Vision and Language Analysis", PhD thesis, UTS, 2021, chapter 4.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias: as in ``nn.Conv2d``. The
            padding must keep the size of the map, and the dilation must be the same in both directions.
        **options: ``num_heads``, ``content``, ``geometric``, ``iterations``, ``share``, ``scale``, ``factorised``,
            ``late_fusion``, ``matching`` and ``norm_cfg`` as in
            :class:`~mmattn.layers.LocalBilateralAttention`. ``norm_cfg`` is the norm of the inner projections, separate
            from the norm of ``ConvModule``: in a network with SyncBN, set it here, too.

    Example:
        >>> conv = BAConv2d(16, 32, 3, padding=1, num_heads=4)
        >>> conv(torch.randn(1, 16, 8, 8)).shape
        torch.Size([1, 32, 8, 8])
        >>> BAConv2d(16, 32, 3, stride=2, padding=1)
        Conv2d(16, 32, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1))
    """

    # A `conv_cfg` has one type for all convolutions of a network, and mmcv builds it from a registered name or a class.
    # A function in place of `__new__` would be an error in a pure-Python config, which has the type itself.
    def __new__(
        cls,
        in_channels: int = 0,
        out_channels: int = 0,
        kernel_size: int | tuple[int, int] = 3,
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | str = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        **options: Unpack[BilateralOptions],
    ):
        """Build a plain convolution if attention cannot replace it. ``copy`` calls this without arguments."""
        if _pair(kernel_size) == (1, 1) or _pair(stride) != (1, 1) or groups != 1:
            return nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias)
        return super().__new__(cls)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | str = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        **options: Unpack[BilateralOptions],
    ) -> None:
        sizes = as_window_size(kernel_size, axes=2, name='kernel_size')
        for step in _pair(dilation):
            check_count('dilation', step)
        self_padding = tuple(k // 2 * d for k, d in zip(sizes, _pair(dilation)))
        if padding != 'same' and _pair(padding) != self_padding:
            raise ValueError(
                f'padding must be {self_padding} for kernel_size={kernel_size} and dilation={dilation}: '
                f'attention keeps the size of the map; got {padding}'
            )
        if len(set(_pair(dilation))) > 1:
            raise ValueError(f'dilation must be the same in both directions; got {dilation}')
        super().__init__(in_channels, out_channels, kernel_size, dilation=_pair(dilation)[0], act_cfg=None, **options)
        self.output = pointwise(self.attended, out_channels, bias=bias)
        # Attributes of a convolution that ConvModule and similar modules read.
        self.kernel_size = sizes
        self.stride = (1, 1)
        self.padding = self_padding
        self.dilation = _pair(dilation)
        self.groups = 1
        self.transposed = False
        self.output_padding = (0, 0)
