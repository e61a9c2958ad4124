_base_ = './sa_big_8xb3584-80k_wmt14-en-fr.py'
attention = dict(type='mmattn.BilateralMultiheadAttention', position='relative', max_offset=16)
model = dict(positions='none', encoder_attention=attention, decoder_attention=attention)
