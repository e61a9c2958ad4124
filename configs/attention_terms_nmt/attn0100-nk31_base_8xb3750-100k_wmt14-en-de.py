_base_ = './attn1111_base_8xb3750-100k_wmt14-en-de.py'
attention = dict(terms='0100', spatial_range=31)
model = dict(encoder_attention=attention, decoder_attention=attention)
