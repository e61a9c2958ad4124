# Dynamic Conv of Wu et al., 2019: 7 + 6 layers with growing kernels, as in fairseq.
_base_ = './sa_big_8xb3584-80k_wmt14-en-fr.py'
kernels = 3, 7, 15, 31, 31, 31, 31
layers = [dict(self_attention=dict(type='mmattn.DynamicConv1d', kernel_size=kernel)) for kernel in kernels]
model = dict(encoder_layers=layers, decoder_layers=layers[:6])
