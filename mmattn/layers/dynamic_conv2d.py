"""Dynamic convolution, as the empirical study of spatial attention puts it into attended residual blocks."""

from mmcv.cnn import ConvModule
from torch import Tensor, nn, zeros
from torch.nn import functional as F

from mmattn.ops import dynamic_conv
from mmattn.ops.checks import check_divisor
from mmattn.ops.window_bias import as_window_size
from mmattn.registry import MODELS


@MODELS.register_module()
class DynamicConv2d(nn.Module):
    """A gated linear unit and a depth-wise convolution whose kernel each position predicts, in a residual.

    y_i = x_i + γ · W_c Σ_j softmax_j [d_{j,g}ᵀ u_i] u_{i + p_j} over the k² offsets p_j (Eq. 5 to 7), u = GLU(W x), a
    softmax for each of ``groups`` groups g of channels; zeros outside the map. γ is a scalar that starts at 0, so that
    a new block is the identity and a pretrained network's output stays as it is.

    The order is that of Wu et al., to which the study defers: the GLU comes before the dynamic convolution, so that x
    of Eq. 5 to 7 is u, which is filtered and predicts the kernels. So are the biases: W and W_c have one, unless a norm
    follows, and d_{j,g} has none.

    Args:
        in_channels (int): channels C of the map.
        kernel_size (int or tuple[int, int]): odd k.
        groups (int): a divisor of ``in_channels``; the channels of a group share their kernel. Defaults to 16.
        norm_cfg (dict, optional): norm after each of the three 1×1 convolutions, as in the study's segmentation
            networks. Defaults to None.

    Raises:
        TypeError: ``in_channels`` or ``groups`` is no integer.
        ValueError: an even kernel, or groups that do not divide the channels.
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
        """Filter each position with its own kernel.

        Args:
            x (Tensor): ``(B, C, H, W)``.

        Returns:
            Tensor: ``(B, C, H, W)``.
        """
        u = F.glu(self.glu(x), 1)
        y = dynamic_conv(self._split(u), self._split(self.kernel(u)), kernel_size=self.kernel_size)
        return x + (self.gamma * self.output(y.movedim(-1, 2).flatten(1, 2))).to(x.dtype)

    def _split(self, x: Tensor) -> Tensor:
        """View ``(B, groups·D, H, W)`` as ``(B, groups, H, W, D)``."""
        return x.unflatten(1, (self.groups, -1)).movedim(2, -1)
