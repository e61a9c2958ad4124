_base_ = './attn1111_base_8xb3750-100k_wmt14-en-de.py'
attention = dict(_delete_=True, type='mmattn.DynamicConv1d', num_heads=16, kernel_size=31)
model = dict(encoder_attention=attention, decoder_attention=attention)
