_base_ = './attn1111_base_8xb3750-100k_wmt14-en-de.py'
attention = [
    dict(type='mmattn.DeformConv1d', kernel_size=3),
    dict(type='mmattn.TransformerAttention1d', terms='1111'),
]
model = dict(encoder_attention=attention, decoder_attention=attention)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=dict(offset=dict(lr_mult=0.1))))
