"""What the tests of the layers for sequences share: they have one interface, and decode in the same way."""

import torch

from ...ops import literal


def build(cls, *arguments, **options):
    """In float64, with every parameter random: several start at 0."""
    layer = cls(*arguments, **options).double().eval()
    for i, parameter in enumerate(layer.parameters()):
        parameter.data.copy_(literal.randn(*parameter.shape, seed=i) / 2)
    return layer


def padding(*lengths, of):
    """True to the right of each sentence."""
    return torch.arange(of) >= torch.tensor(lengths)[:, None]


def assert_same_with_gradients(ours, expected, inputs, layer, tolerance=1e-11):
    torch.testing.assert_close(ours, expected, atol=tolerance, rtol=tolerance)
    cotangent = literal.randn(*ours.shape, seed=7)
    wanted = {**{f'input {i}': x for i, x in enumerate(inputs)}, **dict(layer.named_parameters())}
    actual = torch.autograd.grad(ours, [*wanted.values()], cotangent, allow_unused=True)  # a query may be
    other = torch.autograd.grad(expected, [*wanted.values()], cotangent, allow_unused=True)
    for (name, x), a, b in zip(wanted.items(), actual, other):
        assert a is not None or (name.startswith('input') and b is None), name
        a, b = (torch.zeros_like(x) if y is None else y for y in (a, b))
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance, msg=lambda text, name=name: f'{name}: {text}')


def assert_steps_are_forward(layer, x):
    """Position by position, with other hypotheses after each step, as in a beam search."""
    state, history, count = layer.start(), x[:, :0], len(x)
    assert state == {}
    for t in range(x.shape[1]):
        token = x[:, t : t + 1]
        history = torch.cat([history, token], 1)
        before = {name: y.clone() for name, y in state.items()}
        out, new = layer.step(token, state, t)
        torch.testing.assert_close(out, layer(history, history, history)[0][:, t:], atol=1e-11, rtol=1e-11)
        assert new is not state
        assert before.keys() == state.keys()
        assert all(torch.equal(before[name], state[name]) for name in state)
        parents = (torch.arange(count) * 2 + t) % count
        state = {name: y.index_select(0, parents) for name, y in new.items()}
        history = history.index_select(0, parents)


def assert_causal(layer, x):
    """A change at t leaves all outputs before t as they were, and changes that at t."""
    expected = layer(x, x, x)[0]
    for t in range(x.shape[1]):
        y = x.clone()
        y[:, t] += 1
        out = layer(y, y, y)[0]
        torch.testing.assert_close(out[:, :t], expected[:, :t], atol=1e-13, rtol=1e-13)
        assert (out[:, t] - expected[:, t]).abs().max() > 1e-3
