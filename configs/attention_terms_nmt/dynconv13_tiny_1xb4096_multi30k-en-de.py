_base_ = './attn1111_tiny_1xb4096_multi30k-en-de.py'
attention = dict(_delete_=True, type='mmattn.DynamicConv1d', num_heads=16, kernel_size=13)
model = dict(encoder_attention=attention, decoder_attention=attention)
