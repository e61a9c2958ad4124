_base_ = './sa_iwslt_1xb4000-50k_iwslt14-de-en.py'
attention = dict(type='mmattn.BilateralMultiheadAttention', position='relative', max_offset=16)
model = dict(positions='none', encoder_attention=attention, decoder_attention=attention)
