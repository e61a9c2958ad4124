"""Sizes, the loss, translation of a batch and of single sentences, by layers of ours and of torch."""

import pytest
import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from mmattn.language.translation import TranslationTransformer

from ..failing import failing
from ..models.torch_weights import from_torch

BILATERAL = 'mmattn.BilateralMultiheadAttention'


def sentences(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 8, (count,), generator=generator)
    return [torch.cat([torch.randint(4, 30, (n,), generator=generator), torch.tensor([2])]) for n in lengths]


def padded(rows):
    return pad_sequence(rows, batch_first=True, padding_value=1)


@pytest.fixture(params=['none', 'bilateral', 'relative', 'torch'])
def model(request):
    torch.manual_seed(0)
    options = dict(stack='Torch')
    if request.param != 'torch':
        attention = dict(type=BILATERAL, position=request.param)
        options = dict(encoder_attention=attention, decoder_attention=attention)
    return TranslationTransformer(30, 'tiny', **options).double().eval()


def test_each_layer_has_its_own_attention():
    """Three convolutions with kernels 3, 5 and 7 see six tokens further, one decoder layer only its own."""
    convolutions = [dict(self_attention=dict(type='mmattn.DynamicConv1d', kernel_size=k)) for k in (3, 5, 7)]
    model = TranslationTransformer(
        30, 'tiny', encoder_layers=convolutions, decoder_layers=[dict(self_attention=None, dropout=0.0)]
    )
    model.double().eval()
    x = model.embedding(torch.arange(4, 20)[None]).detach().requires_grad_()
    model.encoder(x, None)[0, 4, 0].backward()
    assert x.grad[0].abs().sum(-1).nonzero().flatten().tolist() == [*range(4 + 6 + 1)]
    assert len(model.decoder.layers) == 1
    assert model.translate(torch.tensor([[4, 5, 2]]), max_length=3)


@torch.no_grad()
def test_a_batch_is_each_sentence_alone(model):
    source, target = sentences(5), sentences(5, seed=1)
    together = model(dict(source=padded(source), target=padded(target)))
    found = model.translate(padded(source), beam=3, max_length=6)
    for row, (x, y) in enumerate(zip(source, target)):
        alone = model(dict(source=x[None], target=y[None]))[0]
        torch.testing.assert_close(together[row, : len(y)], alone, rtol=0, atol=1e-10)
        (expected,) = model.translate(x[None], beam=3, max_length=6)
        assert [h.tokens for h in found[row]] == [h.tokens for h in expected]
        assert [h.score for h in found[row]] == pytest.approx([h.score for h in expected], abs=1e-10)


@pytest.mark.parametrize('norm_first', [False, True])
def test_equals_the_layers_of_torch(norm_first):
    """The whole model, with the same weights, padding included: logits, gradients, and the translations of a search."""
    torch.manual_seed(0)
    models = ours, theirs = [
        TranslationTransformer(30, 'tiny', stack=stack, norm_first=norm_first).double().eval()
        for stack in ('Sequence', 'Torch')
    ]
    for parameter in theirs.parameters():  # norms and biases, too
        torch.nn.init.normal_(parameter, std=0.2)
    ours.load_state_dict(from_torch(theirs))
    source, target = padded(sentences(5)), padded(sentences(5, seed=1))
    logits = [model(dict(source=source, target=target))[target != 1] for model in models]
    torch.testing.assert_close(*logits, rtol=0, atol=1e-10)
    found, expected = (model.translate(source, beam=3, max_length=6) for model in models)
    assert [[h.tokens for h in each] for each in found] == [[h.tokens for h in each] for each in expected]
    for model, y in zip(models, logits):
        y.square().mean().backward()
        for parameter in model.parameters():
            parameter.data = parameter.grad
    torch.testing.assert_close(dict(ours.state_dict()), from_torch(theirs), rtol=1e-9, atol=1e-10)


def test_the_loss_is_of_the_tokens_that_are_not_padding(model):
    source, target = sentences(4), sentences(4, seed=1)
    found = model.loss(padded(source), padded(target))
    tokens = torch.cat(target)
    logits = torch.cat([model(dict(source=x[None], target=y[None]))[0] for x, y in zip(source, target)])
    torch.testing.assert_close(found['loss'], F.cross_entropy(logits, tokens, label_smoothing=0.1))
    torch.testing.assert_close(found['nll'], F.cross_entropy(logits, tokens))
    assert found['num_tokens'] == len(tokens)


def test_the_limit_depends_on_the_source(monkeypatch):
    """a · (source length) + b tokens; neither end token counts."""
    torch.manual_seed(0)
    model = TranslationTransformer(30, 'tiny', test_cfg=dict(beam=1, max_length=(2, 1))).eval()
    improbable = torch.zeros(30).index_fill(0, torch.tensor([2]), 1e4)
    logits = model.embedding.logits
    monkeypatch.setattr(model.embedding, 'logits', lambda x: logits(x) - improbable)  # never ends by itself
    found = model.translate(padded([torch.tensor([4, 5, 2]), torch.tensor([4, 5, 6, 7, 2])]))
    assert [len(hypotheses[0].tokens) for hypotheses in found] == [2 * 2 + 1, 2 * 4 + 1]


def tiny(**options):
    return TranslationTransformer(30, **dict(size='tiny') | options)


test_failures = failing(
    (lambda: tiny(test_cfg=dict(beams=3)), 'beams'),
    (lambda: tiny(stack='Torch', encoder_attention=dict(type=BILATERAL)), 'self_attention'),
    (lambda: tiny(stack='Torch', decoder_layers=[{}]), 'decoder_layers'),
    (lambda: tiny().translate(torch.tensor([[4, 2], [2, 1]])), 'at least one token'),
    (lambda: tiny().translate(torch.empty(1, 0, dtype=torch.long)), 'at least one token'),
    error=(TypeError, ValueError),
)
