_base_ = './sa_big_8xb3584-30k_wmt14-en-de.py'
attention = dict(type='mmattn.BilateralMultiheadAttention', window_size=21)
model = dict(encoder_attention=attention, decoder_attention=attention)
