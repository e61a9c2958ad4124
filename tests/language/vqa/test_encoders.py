"""Question encoders against the equations of the GRU, step by step, in float64; dropout, published weights, padding."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from mmattn.language.text.vocabulary import PAD
from mmattn.language.vqa import QuestionGRU, SkipThoughtEncoder

from ...ops import literal
from ..failing import failing
from ..layers.sequences import assert_same_with_gradients
from ..layers.sequences import build as randomized

V, W, N = 9, 4, 3
QUESTIONS = torch.tensor([[5, 8, 4, PAD], [6, PAD, 7, 5], [PAD] * 4, [4, PAD, PAD, PAD]])
LAST = [3, 4, 0, 1]  # number of words; an unknown word may have the number of padding


def build(cls=QuestionGRU, **options):
    """In training; the vector of padding is 0."""
    encoder = randomized(cls, V, W, N, **options).train()
    encoder.embedding.weight.data[PAD] = 0
    return encoder


ONES = torch.ones(3, 1)


def literally(encoder, question, of_words=ONES, of_state=ONES):
    """The GRU of one question; the dropout masks are those of the gates r, z, n."""
    gru = encoder.gru
    w, u, b, c = (x.chunk(3) for x in (gru.weight_ih_l0, gru.weight_hh_l0, gru.bias_ih_l0, gru.bias_hh_l0))
    h, found = torch.zeros(N, dtype=torch.float64), []
    vectors = encoder.embedding.weight * (torch.arange(V) != PAD)[:, None]  # that of padding gets no gradient
    for x in vectors[question]:
        own, other = ([m[i] @ (y * mask[i]) for i in range(3)] for m, y, mask in ((w, x, of_words), (u, h, of_state)))
        r, z = (torch.sigmoid(own[i] + b[i] + other[i] + c[i]) for i in range(2))
        n = torch.tanh(own[2] + b[2] + r * (other[2] + c[2]))
        h = (1 - z) * n + z * h
        found.append(h)
    return torch.stack(found)


@pytest.mark.parametrize('cls', [QuestionGRU, SkipThoughtEncoder])
def test_outputs_and_last_state_are_those_of_the_equations(cls):
    encoder = build(cls).eval()
    found = encoder(QUESTIONS)
    expected = torch.stack([literally(encoder, question) for question in QUESTIONS])
    last = torch.stack([row[n - 1] if n else torch.zeros(N).double() for row, n in zip(expected, LAST)])
    wanted = torch.cat([expected, last[:, None]], 1)
    assert_same_with_gradients(torch.cat([found.words, found.state[:, None]], 1), wanted, [], encoder, 1e-12)
    assert found.mask.tolist() == [[i >= n for i in range(4)] for n in LAST]


def test_every_gate_has_its_dropout_mask_at_all_steps(monkeypatch):
    """Masks are drawn once per question and gate, scaled by 1 / (1 − p); they apply to words and states."""
    encoder = build(SkipThoughtEncoder, dropout=0.5).train()
    drawn = []

    def keep(x, p):
        drawn.append(dropout(x, p))
        return drawn[-1]

    dropout = F.dropout
    monkeypatch.setattr('mmattn.language.vqa.encoders.F.dropout', keep)
    torch.manual_seed(0)
    found = encoder(QUESTIONS).words
    of_words, of_state = drawn
    assert (of_words.shape, of_state.shape) == ((3, 4, W), (3, 4, N))
    assert set(torch.cat(drawn, -1).unique().tolist()) == {0.0, 2.0}
    assert all(len(mask.flatten(1).unique(dim=0)) == 3 for mask in drawn)
    assert all(len(mask.transpose(0, 1).flatten(1).unique(dim=0)) > 1 for mask in drawn)
    expected = [literally(encoder, q, of_words[:, i], of_state[:, i]) for i, q in enumerate(QUESTIONS)]
    assert_same_with_gradients(found, torch.stack(expected), [], encoder, 1e-12)


def test_a_batch_of_empty_questions():
    found = build()(torch.zeros(2, 0, dtype=torch.long))
    assert found.words.shape == (2, 1, N)
    assert found.mask.all()
    assert not found.state.any()


def test_the_vector_of_padding_is_zero_and_stays_so():
    torch.manual_seed(0)
    for cls in (QuestionGRU, SkipThoughtEncoder):
        assert cls(2000, 300, 4, word_std=0.1).embedding.weight.std().item() == pytest.approx(0.1, rel=0.005)
    encoder = QuestionGRU(2000, 300, 4)
    weight = encoder.embedding.weight
    assert not weight[PAD].any()
    assert abs(weight.std() - 0.4) < 0.002
    encoder(torch.tensor([[5, PAD]])).words.sum().backward()
    assert weight.grad[5].any()
    assert not weight.grad[PAD].any()


def test_a_frozen_encoder_extracts_in_training_what_it_does_in_a_test():
    encoder = build(SkipThoughtEncoder, dropout=0.5, frozen=True)
    expected = encoder.eval()(QUESTIONS)
    words, state, _ = encoder.train()(QUESTIONS)
    assert torch.equal(words, expected.words)
    assert torch.equal(state, expected.state)
    assert not words.requires_grad
    for question, row, last in zip(QUESTIONS, words, LAST):
        torch.testing.assert_close(row[:last], literally(encoder, question)[:last], rtol=1e-12, atol=1e-12)


def publish(path, width=N, channels=W, **changed):
    """A file as ``uni_skip.npz``, and its arrays."""
    sizes = dict(W=(channels, 2 * width), Wx=(channels, width), U=(width, 2 * width), Ux=(width, width))
    sizes |= dict(b=(2 * width,), bx=(width,))
    arrays = {f'encoder_{name}': literal.randn(*size, seed=i).numpy() for i, (name, size) in enumerate(sizes.items())}
    np.savez(path, **arrays | changed, decoder_W=np.zeros(3))
    return {name.removeprefix('encoder_'): torch.from_numpy(x) for name, x in arrays.items()}


def test_the_published_gru(tmp_path):
    """As the published code computes it: r and u, then the new state; u is z of nn.GRU."""
    w = publish(tmp_path / 'uni_skip.npz')
    encoder = build(SkipThoughtEncoder, pretrained=str(tmp_path / 'uni_skip.npz')).float().eval()
    encoder.init_weights()
    question = QUESTIONS[0]
    h = torch.zeros(N).double()
    for x in encoder.embedding.weight[question].double():
        r, u = torch.sigmoid(h @ w['U'] + x @ w['W'] + w['b']).chunk(2)
        new = torch.tanh((h @ w['Ux']) * r + x @ w['Wx'] + w['bx'])
        h = u * h + (1 - u) * new
    torch.testing.assert_close(encoder(question[None]).words[0, -1], h.float())


def test_training_from_scratch_is_said_and_changes_nothing(monkeypatch):
    said, encoder = [], build(SkipThoughtEncoder)
    monkeypatch.setattr('mmattn.language.vqa.encoders.print_log', lambda text, *_: said.append(text))
    before = {name: x.clone() for name, x in encoder.state_dict().items()}
    encoder.init_weights()
    assert ['uni_skip.npz' in text for text in said] == [True]
    assert all(torch.equal(x, before[name]) for name, x in encoder.state_dict().items())


def pretrained(folder, write=publish, **options):
    write(folder / 'uni_skip.npz', **options)
    SkipThoughtEncoder(V, W, N, pretrained=str(folder / 'uni_skip.npz')).init_weights()


NAN = dict(encoder_bx=np.array([0, np.nan, 0]))
test_wrong_weights = failing(
    (lambda tmp_path: pretrained(tmp_path, width=5), 'uni_skip.npz: .*weight_ih_l0'),
    (lambda tmp_path: pretrained(tmp_path, lambda path: np.savez(path, encoder_W=np.zeros(4))), 'uni_skip.npz'),
    (lambda tmp_path: pretrained(tmp_path, lambda path: path.write_bytes(b'text')), 'uni_skip.npz'),
    (lambda tmp_path: pretrained(tmp_path, **NAN), 'uni_skip.npz'),
    match='(?s){}',
)
