"""Dynamic convolution in an attended residual block."""

from mmcv.cnn import ConvModule
from torch import Tensor, nn, zeros
from torch.nn import functional as F

from mmattn.ops import dynamic_conv
from mmattn.ops.arguments import as_window_size
from mmattn.ops.layouts import copy_for_inductor
from mmattn.registry import MODELS
from mmattn.utils.checks import check_divisor, check_map


@MODELS.register_module()
class DynamicConv2d(nn.Module):
    """Residual block with a gated linear unit (GLU) and a depth-wise convolution whose kernel each position predicts.

    y_i = x_i + γ · W_c Σ_j softmax_j [d_{j,g}ᵀ u_i] u_{i + p_j} over the k² offsets p_j (Eq. 5 to 7), with u =
    GLU(W x). Each of the ``groups`` groups g of channels has its own softmax. Outside the map, u is 0. γ is a learned
    scalar that starts at 0: a new block is the identity and does not change the output of a pretrained network.

    As in the paper, the order of the operations follows Wu et al.: the GLU precedes the dynamic convolution, so x of
    Eq. 5 to 7 is u, which is filtered and also predicts the kernels. W and W_c have biases, unless a norm follows.
    There is no bias in d_{j,g}.
    Source: "An Empirical Study of Spatial Attention Mechanisms in Deep Networks", 2019.

    Args:
        in_channels (int): channels C of the map.
        kernel_size (int or tuple[int, int]): odd side k of the kernel, or (vertical, horizontal).
        groups (int): number of groups, a divisor of C. The channels of a group share a kernel. Defaults to 16.
        norm_cfg (dict, optional): norm after each of the three 1×1 convolutions, as in the segmentation networks of the
            paper. Defaults to None.

    Example:
        >>> layer = DynamicConv2d(16, kernel_size=3, groups=4)
        >>> x = torch.randn(1, 16, 8, 8)
        >>> torch.equal(layer(x), x)  # γ is 0
        True
    """

    def __init__(
        self, in_channels: int, kernel_size: int | tuple[int, int], groups: int = 16, norm_cfg: dict | None = None
    ) -> None:
        super().__init__()
        check_divisor('groups', groups, 'in_channels', in_channels)
        height, width = as_window_size(kernel_size, axes=2, name='kernel_size')
        self.kernel_size = height, width
        self.groups = groups
        options = dict(norm_cfg=norm_cfg, act_cfg=None)
        self.glu = ConvModule(in_channels, 2 * in_channels, 1, **options)
        self.kernel = ConvModule(in_channels, groups * height * width, 1, bias=False, **options)
        self.output = ConvModule(in_channels, in_channels, 1, **options)
        self.gamma = nn.Parameter(zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Filter each position with its own kernel, from float ``(B, C, H, W)`` to ``(B, C, H, W)``."""
        check_map(self, x, self.glu.in_channels)
        u = F.glu(self.glu(x), 1)
        y = dynamic_conv(self._split(u), self._split(self.kernel(u)), kernel_size=self.kernel_size)
        y = copy_for_inductor(y.movedim(-1, 2).flatten(1, 2))
        return x + (self.gamma * self.output(y)).to(x.dtype)

    def _split(self, x: Tensor) -> Tensor:
        """View ``(B, groups·D, H, W)`` as ``(B, groups, H, W, D)``."""
        return x.unflatten(1, (self.groups, -1)).movedim(2, -1)
