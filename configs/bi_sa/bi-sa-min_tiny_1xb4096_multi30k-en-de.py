_base_ = './bi-sa_tiny_1xb4096_multi30k-en-de.py'
model = dict(encoder_attention=dict(padding='min'), decoder_attention=dict(padding='min'))
