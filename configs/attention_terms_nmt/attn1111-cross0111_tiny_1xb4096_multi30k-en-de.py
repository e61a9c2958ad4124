_base_ = './attn1111_tiny_1xb4096_multi30k-en-de.py'
model = dict(cross_attention=dict(terms='0111'))
