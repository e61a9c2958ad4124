"""The counter against the loops of its equations, and counts that follow from them."""

import pytest
import torch

from mmattn.language.layers import ObjectCounter

from ...ops import literal
from ..failing import failing
from .sequences import assert_same_with_gradients, build

INF = 800.0  # the sigmoid of float64 is 1


def distinct(count, of=10):
    """Disjoint boxes in a row."""
    left = torch.arange(of, dtype=torch.float64)[:, None] / of
    boxes = torch.cat([left, torch.zeros(of, 1), left + 0.5 / of, torch.ones(of, 1)], -1)
    boxes[count:] = boxes[:1]  # the others are one object
    return boxes


def one_hot(count):
    return torch.eye(11, dtype=torch.float64)[count]


@pytest.mark.parametrize(
    ('selected', 'different', 'count'), [(3, 10, 3), (3, 1, 1), (0, 10, 0), (10, 10, 10), (10, 1, 1), (5, 4, 4)]
)
def test_counts_at_the_start(selected, different, count):
    """``selected`` boxes have a = 1, of which ``different`` are disjoint and the others equal to the first."""
    logits = torch.full((1, 10), -INF, dtype=torch.float64)
    logits[:, :selected] = INF
    out = ObjectCounter().double()(logits, distinct(different)[None])
    torch.testing.assert_close(out[0], one_hot(count), atol=1e-12, rtol=0)


def test_ten_uncertain_boxes():
    """c = 1.012201, between 1 and 2, times .5: the boxes are certain to be disjoint, and a is uncertain."""
    out = ObjectCounter().double()(torch.zeros(1, 10).double(), distinct(10)[None])[0]
    c = 1.012201  # printed with six decimals
    torch.testing.assert_close(out, 0.5 * ((2 - c) * one_hot(1) + (c - 1) * one_hot(2)), atol=3e-7, rtol=0)
    torch.testing.assert_close(out.sum(), torch.tensor(0.5).double(), atol=1e-12, rtol=0)


def f(weight, x):
    """Pieces whose slopes are |w| / Σ|w| times their number, 16 by default."""
    total, position = 0.0, len(weight) * x
    for i, w in enumerate(weight.abs() / weight.abs().sum()):
        total = total + w * min(max(position - i, 0 * position), 0 * position + 1)
    return total


def literally(counter, a, boxes):
    """One image, with loops."""
    f1, f2, f3, f4, f5, f6, f7, f8 = (lambda x, w=g.weight: f(w, x) for g in counter.functions)
    n = range(len(a))

    def iou(p, q):
        width = max(min(p[2], q[2]) - max(p[0], q[0]), p[0] * 0)
        height = max(min(p[3], q[3]) - max(p[1], q[1]), p[0] * 0)
        union = (p[2] - p[0]) * (p[3] - p[1]) + (q[2] - q[0]) * (q[3] - q[1]) - width * height
        return width * height / union

    d = [[1 - iou(boxes[i], boxes[j]) for j in n] for i in n]
    z = [[f4(a[i] * a[j]) * f5(d[i][j]) for j in n] for i in n]
    r = []
    for i in n:
        row = 0
        for j in n:
            similarity = f3(1 - abs(a[i] - a[j]))
            for k in n:
                similarity = similarity * f3(1 - abs(z[i][k] - z[j][k]))
            row = row + similarity
        r.append(row)
    c = sum(f1(a[i] * a[j]) * f2(d[i][j]) / (r[i] * r[j]) for i in n for j in n)
    c = (c + sum(f1(a[i] * a[i]) / r[i] for i in n)) ** 0.5
    c = min(c, c * 0 + len(a))
    confidence = f8(
        sum(abs(f6(x) - 0.5) for x in a) / len(a) + sum(abs(f7(d[i][j]) - 0.5) for i in n for j in n) / len(a) ** 2
    )
    shares = [max(1 - abs(c - i), c * 0) for i in range(len(a) + 1)]
    return torch.stack(shares) * confidence


def random_boxes(count, seed=0):
    corner = torch.rand(1, count, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.cat([corner, corner + 0.4], -1)


@pytest.mark.parametrize('options', [{}, dict(num_pieces=5)], ids=str)
def test_values_and_gradients_are_the_equations(options):
    counter = build(ObjectCounter, 3, **options)
    assert all(len(g.weight) == options.get('num_pieces', 16) for g in counter.functions)
    logits = literal.randn(1, 5, seed=3).requires_grad_()
    boxes = random_boxes(5).requires_grad_()
    chosen = logits[0].argsort(descending=True)[:3]
    expected = literally(counter, logits[0, chosen].sigmoid(), boxes[0, chosen])
    out = counter(logits, boxes)[0]
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-12)
    assert_same_with_gradients(out, expected, [logits, boxes], counter)


def test_padding_changes_nothing():
    """Of fewer than ten boxes, of more, and in a batch."""
    counter = build(ObjectCounter)
    for count in (0, 4, 12):
        logits, boxes = literal.randn(1, count, seed=5), random_boxes(count)
        expected = counter(logits, boxes)
        for value in (1e3, torch.nan):
            padded = torch.cat([logits, torch.full((1, 9), value)], 1).requires_grad_()
            more = torch.cat([boxes, torch.full((1, 9, 4), value)], 1).requires_grad_()
            mask = torch.arange(count + 9)[None] >= count
            out = counter(padded.expand(2, -1), more.expand(2, -1, -1), mask.expand(2, -1))
            torch.testing.assert_close(out, expected.expand(2, -1), atol=1e-12, rtol=1e-12)
            grads = torch.autograd.grad(out.square().sum(), [padded, more, *counter.parameters()])
            assert all(grad.isfinite().all() for grad in grads)
            assert not grads[0][mask].any()


@pytest.mark.parametrize('count', [0, 1, 6])
def test_skipped_boxes_are_not_read(count):
    """Also where an image has no other box."""
    counter, of_others = (build(ObjectCounter, 3, skip=skip) for skip in (1, 0))
    logits, boxes = literal.randn(1, count, seed=5), random_boxes(count)
    torch.testing.assert_close(counter(logits, boxes), of_others(logits[:, 1:], boxes[:, 1:]), atol=0, rtol=0)


def test_nothing_selected_has_finite_gradients():
    """The root is of 0, and boxes without an area have no union."""
    counter = ObjectCounter().double()
    logits = torch.full((1, 10), -torch.inf).double().requires_grad_()
    boxes = torch.zeros(1, 10, 4).double().requires_grad_()
    out = counter(logits, boxes)
    torch.testing.assert_close(out[0], one_hot(0), atol=1e-12, rtol=0)
    grads = torch.autograd.grad(out.square().sum(), [logits, boxes, *counter.parameters()])
    assert all(grad.isfinite().all() for grad in grads)


test_failures = failing(
    (lambda: ObjectCounter()(torch.ones(2, 3), torch.ones(2, 3, 5)), 'boxes'),
    (lambda: ObjectCounter()(torch.ones(2, 3), torch.ones(2, 3, 4), torch.ones(2, 3)), 'padding_mask'),
    error=(TypeError, ValueError),
)
