_base_ = './sa_base_8xb3125-100k_wmt14-en-de.py'
attention = dict(type='mmattn.BilateralMultiheadAttention', position='none', normalize_queries=True)
model = dict(encoder_attention=attention)  # the first prefix of the decoder has no variance
