"""Multimodal compact bilinear pooling (MCB): the count sketch of an outer product."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmattn.ops import count_sketch
from mmattn.ops.window_bias import accumulator
from mmattn.registry import MODELS
from mmattn.utils.checks import check_count


@MODELS.register_module()
class MCBFusion(nn.Module):
    """Fuse a question and a value by the count sketch of their outer product, and a linear layer.

    u = Lin(irfft(rfft(Ψ(q)) ⊙ rfft(Ψ(v)))): the circular convolution of two count sketches Ψ with separate random
    hashes is exactly the count sketch of the outer product, whose hash is the sum of both modulo d. The hashes are
    fixed, and saved with the weights.

    Source: Fukui et al., "Multimodal Compact Bilinear Pooling for Visual Question Answering and Visual Grounding",
    2016; a baseline in "Attention and Fusion of Deep Representations for Computer Vision", master's thesis, University
    of Guelph, 2020, chapter 3.

    Args:
        query_dim, value_dim (int): channels of the inputs.
        out_dim (int): channels of the output.
        sketch_dim (int): d. Defaults to 16000.
        normalize (bool): apply sign(u)√|u| and L2 normalisation before the linear layer. Defaults to True.
        seed (int): seed of the hashes. Defaults to 0.

    Raises:
        TypeError: a number is not an integer.
        ValueError: a number of channels is below 1, or ``seed`` is below 0.

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
        for name, number in (('query_dim', query_dim), ('value_dim', value_dim), ('out_dim', out_dim)):
            check_count(name, number)
        check_count('sketch_dim', sketch_dim)
        check_count('seed', seed, least=0)
        self.sketch_dim, self.normalize = sketch_dim, normalize
        generator = torch.Generator().manual_seed(seed)
        for name, channels in (('query', query_dim), ('value', value_dim)):
            index = torch.randint(sketch_dim, (channels,), generator=generator, device='cpu')
            sign = torch.randint(2, (channels,), generator=generator, device='cpu') * 2.0 - 1
            self.register_buffer(f'{name}_index', index)
            self.register_buffer(f'{name}_sign', sign)
        self.out_proj = nn.Linear(sketch_dim, out_dim)

    def forward(self, query: Tensor, value: Tensor) -> Tensor:
        """Return u, ``(*, out_dim)``.

        Args:
            query (Tensor): q, float ``(*, query_dim)``.
            value (Tensor): v, float ``(*, value_dim)``; the other dimensions are broadcast.

        Raises:
            ValueError: the channels do not fit.
        """
        u = self.sketch(query, value)
        if self.normalize:
            # The gradient of the root is infinite at 0.
            root = u.abs().where(u != 0, 1).sqrt()
            u = F.normalize((u.sign() * root).where(u != 0, 0), dim=-1)
        return self.out_proj(u.to(self.query_sign.dtype))  # not out_proj.weight, which is a method if it is quantized

    def sketch(self, query: Tensor, value: Tensor) -> Tensor:
        """Return the count sketch of the outer product, ``(*, d)``; float64 for float64 inputs, otherwise float32."""
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
