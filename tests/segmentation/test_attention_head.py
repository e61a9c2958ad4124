"""AttentionHead is mmseg's FCN head, until the attention between its convolutions learns."""

import pytest
import torch
from mmengine.registry import init_default_scope
from mmseg.models.decode_heads import FCNHead

from mmattn.segmentation import AttentionHead, BiNLHead

from .test_heads import randomise

HEAD = dict(in_channels=6, channels=8, num_classes=3, in_index=1, norm_cfg=dict(type='BN'), dropout_ratio=0)
ATTENTION = dict(type='mmattn.TransformerAttention2d', num_heads=2)


def test_the_number_of_convolutions_of_a_stock_config_is_accepted():
    assert AttentionHead(num_convs=2, **HEAD).num_convs == 2
    with pytest.raises(ValueError, match='num_convs must be 2'):
        AttentionHead(num_convs=1, **HEAD)


def test_a_subclass_may_have_a_module_called_layer():
    class Head(AttentionHead):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.layer = torch.nn.Conv2d(8, 8, 1)

    assert Head(**HEAD).layer.weight.shape == (8, 8, 1, 1)


def test_options_of_a_fixed_layer_are_not_a_layer():
    with pytest.raises(TypeError, match=r"BilateralNonLocal2d.*'type'"):
        BiNLHead(attention=dict(type='mmattn.BilateralNonLocal2d', window_size=3), **HEAD)


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
