"""Without positions, or until the attention learns, the heads are mmseg's; with them, every parameter learns."""

import pytest
import torch
from mmengine.registry import init_default_scope
from mmengine.structures import PixelData
from mmseg.models.decode_heads import CCHead, FCNHead, NLHead
from mmseg.structures import SegDataSample

from mmattn.layers import BilateralCrissCrossAttention
from mmattn.segmentation import AttentionHead, BiCCHead, BiNLHead

from ..requirements import requires

HEAD = dict(in_channels=6, channels=16, num_classes=3, in_index=1, norm_cfg=dict(type='BN'), dropout_ratio=0)
ATTENTION = dict(type='mmattn.TransformerAttention2d', num_heads=2)
SIGMOID = dict(type='CrossEntropyLoss', use_sigmoid=True)
PAIRS = [
    pytest.param(CCHead, BiCCHead, {}, marks=requires('mmcv operators')),
    pytest.param(CCHead, BiCCHead, dict(recurrence=1, concat_input=False), marks=requires('mmcv operators')),
    pytest.param(CCHead, BiCCHead, dict(recurrence=3, kernel_size=1), marks=requires('mmcv operators')),
    (NLHead, BiNLHead, {}),
    (NLHead, BiNLHead, dict(reduction=4, use_scale=False)),
    (NLHead, BiNLHead, dict(mode='gaussian', reduction=1)),
    (NLHead, BiNLHead, dict(mode='dot_product')),
    (NLHead, BiNLHead, dict(mode='concatenation', concat_input=False)),
]


def randomise(module):
    """At initialisation the residual scalars and norms are zero, and any two blocks would agree."""
    generator = torch.Generator().manual_seed(0)
    for tensor in [*module.parameters(), *module.buffers()]:
        if tensor.is_floating_point():
            tensor.data.copy_(torch.rand(tensor.shape, generator=generator) * 0.2 + 0.05)


@pytest.mark.parametrize('losses', [SIGMOID, [dict(SIGMOID, loss_name='loss_a'), dict(SIGMOID, loss_name='loss_b')]])
@pytest.mark.parametrize('head_class', [AttentionHead, BiCCHead, BiNLHead])
def test_a_batch_whose_pixels_are_all_ignored_has_a_loss_of_0(head_class, losses):
    """With one logit, where mmseg's loss fails. One pixel is enough for its loss."""
    init_default_scope('mmseg')
    head = head_class(**{**HEAD, 'num_classes': 2}, out_channels=1, loss_decode=losses)
    x = [None, torch.randn(2, 6, 5, 7, requires_grad=True)]
    labels = torch.full((1, 5, 7), 255)
    samples = [SegDataSample(gt_sem_seg=PixelData(data=labels)) for _ in range(2)]
    loss = head.loss_by_feat(head(x), samples)
    assert {name: float(value) for name, value in loss.items()} == {
        **dict.fromkeys(['loss_ce'] if losses is SIGMOID else ['loss_a', 'loss_b'], 0),
        'acc_seg': 0,
    }
    sum(value for name, value in loss.items() if name.startswith('loss')).backward()
    assert all((p.grad == 0).all() for p in head.parameters())
    labels[0, 2, 3] = 1
    stock = FCNHead.loss_by_feat(head, head(x), samples)
    assert head.loss_by_feat(head(x), samples).keys() == stock.keys() == loss.keys()
    assert all(stock[name] > 0 for name in stock if name.startswith('loss'))


@pytest.mark.every_case
@pytest.mark.parametrize(('stock_class', 'head_class', 'options'), PAIRS)
@pytest.mark.parametrize('training', [False, True])
def test_head_without_position_is_the_stock_head(stock_class, head_class, options, training):
    stock = stock_class(**HEAD, **options).double().train(training)
    head = head_class(position='none', **HEAD, **options).double().train(training)
    randomise(stock)
    head.load_state_dict(stock.state_dict())  # strict
    assert stock.state_dict().keys() == head.state_dict().keys()
    generator = torch.Generator().manual_seed(1)
    x = [None, torch.randn(2, 6, 5, 7, generator=generator, dtype=torch.float64, requires_grad=True)]
    ours, expected = head(x), stock(x)
    assert expected.std() > 1e-3
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-9)
    if options.get('mode') == 'concatenation':
        return  # mmcv's own block divides the output of its ReLU in place and cannot be differentiated
    cotangent = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    (ours * cotangent).sum().backward()
    d_ours, x[1].grad = x[1].grad, None
    (expected * cotangent).sum().backward()
    torch.testing.assert_close(d_ours, x[1].grad, atol=1e-5, rtol=1e-9)
    for (name, a), b in zip(head.named_parameters(), stock.parameters()):
        torch.testing.assert_close(
            a.grad.reshape(b.shape), b.grad, atol=1e-5, rtol=1e-9, msg=lambda text, name=name: f'{name}: {text}'
        )


@requires('mmcv operators')
def test_checkpoints_load_in_both_directions():
    from mmcv.ops import CrissCrossAttention

    stock, ours = CrissCrossAttention(16), BilateralCrissCrossAttention(16, position='none')
    randomise(stock)
    assert stock.gamma.scale.shape == ()
    ours.load_state_dict(stock.state_dict())
    assert ours.gamma.scale.shape == (1,)
    assert ours.gamma.scale.item() == stock.gamma.scale.item() != 0
    randomise(ours)
    ours.gamma.scale.data.fill_(3)
    stock.load_state_dict(ours.state_dict())
    assert stock.gamma.scale.item() == 3


@pytest.mark.parametrize('head_class', [BiCCHead, BiNLHead])
def test_options_of_the_layer_are_options_of_the_head(head_class):
    layer = head_class.layer
    kinds = dict(window_size=(3, 5), padding='mean', smoothing=2.0)
    torch.manual_seed(0)
    beside = head_class(**HEAD, position='bilateral', zero_init=True, reduction=4, **kinds)
    torch.manual_seed(0)
    within = head_class(**HEAD, position=dict(type='bilateral', **kinds), attention=dict(zero_init=True, reduction=4))
    torch.manual_seed(0)
    alone = layer(HEAD['channels'], reduction=4, zero_init=True, **kinds)
    assert getattr(beside, head_class.attribute).window_position.scale == 0.5
    for a, b in zip(beside.state_dict().items(), within.state_dict().items(), strict=True):
        assert a[0] == b[0]
        assert torch.equal(a[1], b[1])
    shapes = {f'{head_class.attribute}.{name}': x.shape for name, x in alone.state_dict().items() if 'position' in name}
    assert shapes.items() <= {name: x.shape for name, x in beside.state_dict().items()}.items()


LAYERED = BiCCHead, BiNLHead


@pytest.mark.parametrize(
    ('heads', 'options', 'error', 'word'),
    [
        (LAYERED, dict(window_sise=3), TypeError, 'window_sise'),
        (LAYERED, dict(window_sise=3, position='none'), TypeError, 'window_sise'),
        (LAYERED, dict(num_class=3), TypeError, 'num_class'),
        (LAYERED, dict(attention=dict(reducton=3)), TypeError, 'reducton'),
        (LAYERED, dict(attention=dict(in_channels=3)), TypeError, 'in_channels'),
        (LAYERED, dict(attention=dict(type='mmattn.BilateralNonLocal2d')), TypeError, "'type'"),
        (LAYERED, dict(position=dict(type='bilateral', pading='zero')), TypeError, 'pading'),
        (LAYERED, dict(position=dict(window_size=3), window_size=3), ValueError, 'window_size'),
        (LAYERED, dict(position=dict(type='bilatral')), ValueError, 'bilatral'),
        ([AttentionHead], dict(num_convs=1), ValueError, 'num_convs'),
    ],
)
def test_an_unknown_option_is_an_error(heads, options, error, word):
    for head_class in heads:
        with pytest.raises(error, match=word):
            head_class(**HEAD, **options)
    assert AttentionHead(num_convs=2, **HEAD).num_convs == 2  # as of a stock config


@pytest.mark.parametrize('head_class', [BiCCHead, BiNLHead])
@pytest.mark.parametrize('position', ['bilateral', 'relative'])
def test_every_parameter_of_a_head_learns(head_class, position):
    head = head_class(position=position, window_size=3, **HEAD)
    randomise(head)
    head([None, torch.randn(2, 6, 5, 7)]).square().sum().backward()
    still = [name for name, p in head.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    # A bias of the keys moves all logits of a query alike, which no softmax sees.
    assert set(still) <= {'cca.key_conv.bias', 'nl_block.phi.conv.bias'}
    with_position = head([None, torch.ones(1, 6, 5, 7)])
    assert with_position.shape == (1, 3, 5, 7)


def test_a_subclass_may_have_a_module_called_layer():
    class Head(AttentionHead):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.layer = torch.nn.Conv2d(8, 8, 1)

    assert Head(**HEAD).layer.weight.shape == (8, 8, 1, 1)


@pytest.mark.parametrize('concat_input', [True, False])
@pytest.mark.parametrize('attention', [None, ATTENTION], ids=['none', 'attention'])
def test_attention_between_the_convolutions_of_the_stock_head(attention, concat_input):
    init_default_scope('mmseg')
    stock = FCNHead(num_convs=2, concat_input=concat_input, **HEAD).double().eval()
    head = AttentionHead(attention, concat_input=concat_input, **HEAD).double().eval()
    randomise(stock)
    missing, unexpected = head.load_state_dict(stock.state_dict(), strict=False)
    assert not unexpected
    assert all(key.startswith('attention.') for key in missing)
    inputs = [None, torch.randn(2, 6, 5, 7, dtype=torch.float64)]
    assert torch.equal(head(inputs), stock(inputs))
    if attention is None:
        assert not missing
        return
    head.attention.gamma.data.fill_(1)
    y = head.convs[1](head.attention(head.convs[0](inputs[1])))
    y = head.conv_cat(torch.cat([inputs[1], y], 1)) if concat_input else y
    torch.testing.assert_close(head(inputs), head.conv_seg(y), atol=1e-12, rtol=1e-12)
    assert (head(inputs) - stock(inputs)).abs().max() > 1e-6
    head.train()
    head(inputs).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in head.attention.parameters())
