_base_ = './bi-sa_tiny_1xb4096_multi30k-en-de.py'
model = dict(encoder_attention=dict(padding='neg_inf'), decoder_attention=dict(padding='neg_inf'))
