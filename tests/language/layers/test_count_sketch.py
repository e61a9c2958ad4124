"""The count sketch is a product with a matrix of one entry per row."""

import pytest
import torch

from mmattn.ops import count_sketch

from ...ops.literal import assert_same, evaluate, randn

INDEX = torch.tensor([0, 3, 3, 1, 0])
SIGN = torch.tensor([1.0, -1, 1, 1, -1], dtype=torch.float64)


def literally(x, sign):
    matrix = torch.zeros(5, 4, dtype=x.dtype)
    matrix[torch.arange(5), INDEX] = 1
    return (x * sign) @ matrix


def test_values_and_gradients():
    tensors = {'x': randn(2, 3, 5), 'sign': SIGN}
    assert_same(evaluate(lambda x, sign: count_sketch(x, INDEX, sign, 4), tensors), evaluate(literally, tensors))


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_sums_in_float32(dtype):
    """One output is 1 + 4,000 · 2⁻¹²: a summand is half an ulp of 1 in float16, and less in bfloat16."""
    x = torch.full((4001,), 2.0**-12, dtype=dtype)
    x[0] = 1
    found = count_sketch(x, torch.zeros(4001, dtype=torch.int64), torch.ones_like(x), 1)
    assert found.dtype == dtype
    assert found.item() == torch.tensor(1 + 4000 * 2**-12).to(dtype).item()


def test_compile():
    torch.compiler.reset()
    compiled = torch.compile(count_sketch, fullgraph=True, backend='aot_eager')
    x = randn(2, 5)
    assert torch.equal(compiled(x, INDEX, SIGN, 4), count_sketch(x, INDEX, SIGN, 4))


WRONG = {
    'x': ({'x': torch.ones(5, dtype=torch.long)}, TypeError),
    'sign': ({'sign': SIGN.float()}, TypeError),
    'index': ({'index': INDEX.int()}, TypeError),
    'index shape': ({'index': INDEX[1:]}, ValueError),
    'sign shape': ({'sign': SIGN[1:]}, ValueError),
    'size': ({'size': 0}, ValueError),
}


@pytest.mark.parametrize('fault', WRONG)
def test_wrong_arguments(fault):
    changes, error = WRONG[fault]
    with pytest.raises(error, match=rf'\b{fault.split()[0]}\b'):
        count_sketch(**{'x': randn(5), 'index': INDEX, 'sign': SIGN, 'size': 4} | changes)
    with pytest.raises(IndexError):
        count_sketch(randn(5), INDEX + 1, SIGN, 4)
