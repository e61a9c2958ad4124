_base_ = './sa_iwslt_1xb4000-50k_iwslt14-de-en.py'
attention = dict(type='mmattn.BilateralMultiheadAttention', window_size=21)
model = dict(encoder_attention=attention, decoder_attention=attention)
