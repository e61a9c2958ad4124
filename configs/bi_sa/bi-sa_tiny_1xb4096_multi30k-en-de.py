_base_ = './sa_tiny_1xb4096_multi30k-en-de.py'
attention = dict(type='mmattn.BilateralMultiheadAttention', window_size=21)
model = dict(encoder_attention=attention, decoder_attention=attention)
