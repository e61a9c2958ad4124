_base_ = './attn1111_base_8xb3750-100k_wmt14-en-de.py'
attention = dict(_delete_=True, type='mmattn.DeformConv1d', kernel_size=3)
model = dict(encoder_attention=attention, decoder_attention=attention)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=dict(offset=dict(lr_mult=0.1))))
