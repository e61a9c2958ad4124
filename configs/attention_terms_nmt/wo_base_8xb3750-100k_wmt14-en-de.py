_base_ = './attn1111_base_8xb3750-100k_wmt14-en-de.py'
model = dict(encoder_attention=None, decoder_attention=None)
