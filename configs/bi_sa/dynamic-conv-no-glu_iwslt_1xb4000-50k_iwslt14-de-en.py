# As fairseq trains this size: without a GLU.
_base_ = './dynamic-conv_iwslt_1xb4000-50k_iwslt14-de-en.py'
layers = [dict(self_attention=dict(layer.self_attention, gated=False)) for layer in _base_.layers]
model = dict(encoder_layers=layers, decoder_layers=layers[:6])
