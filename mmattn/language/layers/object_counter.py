"""The counter of objects: how many boxes are attended to, where overlapping boxes are one object."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmattn.registry import MODELS
from mmattn.utils.checks import check_count

from .sequence_checks import check_key_padding_mask


class PiecewiseLinear(nn.Module):
    """A monotone, piecewise linear function of [0, 1] with f(0) = 0 and f(1) = 1, at first the identity.

    The slope of each of the ``num_pieces`` pieces is proportional to the absolute value of its weight.
    """

    def __init__(self, num_pieces: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_pieces))

    def forward(self, x: Tensor) -> Tensor:
        """Apply f to each entry."""
        rise = self.weight.abs() / self.weight.abs().sum()
        x = x * len(rise)
        piece = x.detach().long().clamp(0, len(rise) - 1)
        start = rise.cumsum(0) - rise
        return start[piece] + (x - piece) * rise[piece]


def box_iou(boxes: Tensor, others: Tensor | None = None) -> Tensor:
    """Compute the IoU ``(*, n, m)`` of boxes ``(*, n, 4)`` and ``others`` ``(*, m, 4)``, by default ``boxes``."""
    others = boxes if others is None else others
    (corner, opposite), (other_corner, other_opposite) = (
        x.chunk(2, -1) for x in (boxes.unsqueeze(-2), others.unsqueeze(-3))
    )
    sides = torch.minimum(opposite, other_opposite) - torch.maximum(corner, other_corner)
    intersection = sides.clamp(min=0).prod(-1)
    area, other_area = (x.clamp(min=0).prod(-1) for x in (opposite - corner, other_opposite - other_corner))
    union = area + other_area - intersection
    return intersection / union.where(union > 0, 1)  # 0 for an empty union


@MODELS.register_module()
class ObjectCounter(nn.Module):
    """Count the objects that attention logits select: a differentiable removal of duplicate boxes.

    With a = sigmoid(m) of the boxes with the greatest logits, E = aaᵀ, D = 1 − IoU, S = f1(E) f2(D), Z = f4(E) f5(D),
    sim_ij = f3(1 − \\|a_i − a_j\\|) Π_k f3(1 − \\|Z_ik − Z_jk\\|) and r_i = Σ_j sim_ij:

        c = √(Σ_ij S_ij / (r_i r_j) + Σ_i f1(a_i²) / r_i)

    The output divides 1 linearly between the two integers next to c, and multiplies it by the confidence f8(mean
    \\|f6(a) − ½\\| + mean \\|f7(D) − ½\\|). Each f is a monotone function of [0, 1] and starts as the identity.

    Source: Zhang et al., "Learning to Count Objects in Natural Images for Visual Question Answering", 2018. In
    "Bilinear Attention Networks", 2018, one counter for all glimpses.

    Args:
        num_objects (int): number of boxes that are used, and the greatest count. Defaults to 10.
        num_pieces (int): number of linear pieces of each f. Defaults to 16.
        skip (int): number of first boxes of each image to ignore, 1 if the first is the whole image. Defaults to 0.

    Example:
        >>> counter = ObjectCounter(num_objects=4)
        >>> boxes = torch.tensor([[[0.0, 0, 0.2, 0.2], [0.5, 0.5, 0.9, 0.9], [0.5, 0.5, 0.9, 0.9]]])
        >>> counter(torch.tensor([[50.0, 50.0, 50.0]]), boxes).argmax(-1)  # two of the boxes are equal
        tensor([2])
    """

    def __init__(self, num_objects: int = 10, num_pieces: int = 16, skip: int = 0) -> None:
        super().__init__()
        check_count('num_objects', num_objects)
        check_count('num_pieces', num_pieces)
        check_count('skip', skip, 0)
        self.num_objects, self.skip = num_objects, skip
        self.functions = nn.ModuleList(PiecewiseLinear(num_pieces) for _ in range(8))

    def forward(self, logits: Tensor, boxes: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Count objects. Entry c of the result, ``(B, num_objects + 1)``, is the confidence that there are c objects.

        Args:
            logits (Tensor): m, float ``(B, n)``. −∞ is a box that is not selected.
            boxes (Tensor): float ``(B, n, 4)``, (x1, y1, x2, y2) in any unit, for example divided by the width and
                height of the image. An image may have fewer than ``num_objects`` boxes, or none.
            padding_mask (Tensor, optional): bool ``(B, n)``, True where a box is padding.
        """
        if logits.dim() != 2 or boxes.shape != (*logits.shape, 4):
            raise ValueError(
                f'logits and boxes must be (B, n) and (B, n, 4); got {tuple(logits.shape)} and {tuple(boxes.shape)}'
            )
        check_key_padding_mask(padding_mask, boxes, 'padding_mask')
        boxes = boxes.to(logits.dtype)
        if padding_mask is not None:
            logits = logits.masked_fill(padding_mask, -torch.inf)
            boxes = boxes.masked_fill(padding_mask.unsqueeze(-1), 0)
        logits, boxes = logits[:, self.skip :], boxes[:, self.skip :]
        missing = max(0, self.num_objects - logits.shape[1])
        logits, boxes = F.pad(logits, (0, missing), value=-torch.inf), F.pad(boxes, (0, 0, 0, missing))
        logits, chosen = logits.topk(self.num_objects, 1)
        boxes = boxes.gather(1, chosen.unsqueeze(-1).expand(-1, -1, 4))
        return self._count(logits.sigmoid(), 1 - box_iou(boxes))

    def _count(self, a: Tensor, distance: Tensor) -> Tensor:
        f1, f2, f3, f4, f5, f6, f7, f8 = self.functions
        pairs = a.unsqueeze(2) * a.unsqueeze(1)
        z = f4(pairs) * f5(distance)
        similarity = f3(1 - (a.unsqueeze(2) - a.unsqueeze(1)).abs())
        similarity = similarity * f3(1 - (z.unsqueeze(2) - z.unsqueeze(1)).abs()).prod(-1)
        rows = similarity.sum(-1)
        score = f1(pairs) * f2(distance) / (rows.unsqueeze(2) * rows.unsqueeze(1))
        square = score.sum((1, 2)) + (f1(a * a) / rows).sum(1)
        # The gradient of the root is infinite at 0.
        count = square.where(square > 0, 1).sqrt().where(square > 0, 0).clamp(max=self.num_objects)
        below = count.detach().long().clamp(max=self.num_objects - 1)
        share = (count - below).unsqueeze(1)
        shares = [F.one_hot(below + i, self.num_objects + 1) * x for i, x in enumerate((1 - share, share))]
        confidence = f8((f6(a) - 0.5).abs().mean(1) + (f7(distance) - 0.5).abs().mean((1, 2)))
        return (shares[0] + shares[1]) * confidence.unsqueeze(1)
