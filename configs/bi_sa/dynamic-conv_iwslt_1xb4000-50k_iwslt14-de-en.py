# Dynamic Conv of Wu et al., 2019: 7 + 6 layers with growing kernels, as in fairseq.
# There, this size has no GLU (dynamic-conv-no-glu_…), and kernels have a dropout of 0.1.
_base_ = './sa_iwslt_1xb4000-50k_iwslt14-de-en.py'
kernels = 3, 7, 15, 31, 31, 31, 31
layers = [dict(self_attention=dict(type='mmattn.DynamicConv1d', kernel_size=kernel)) for kernel in kernels]
model = dict(encoder_layers=layers, decoder_layers=layers[:6])
