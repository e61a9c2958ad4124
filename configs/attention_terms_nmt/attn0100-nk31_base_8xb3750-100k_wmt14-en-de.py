_base_ = './attn1111_base_8xb3750-100k_wmt14-en-de.py'
# 31 positions in both: the decoder has the past half of its range.
model = dict(
    encoder_attention=dict(terms='0100', spatial_range=31), decoder_attention=dict(terms='0100', spatial_range=61)
)
