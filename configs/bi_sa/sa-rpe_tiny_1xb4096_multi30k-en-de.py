_base_ = './sa_tiny_1xb4096_multi30k-en-de.py'
attention = dict(type='mmattn.BilateralMultiheadAttention', position='relative', max_offset=16)
model = dict(positions='none', encoder_attention=attention, decoder_attention=attention)
