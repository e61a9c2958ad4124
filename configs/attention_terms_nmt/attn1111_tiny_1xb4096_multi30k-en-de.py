# The parent of the configs for Multi30k.
_base_ = '../bi_sa/sa_tiny_1xb4096_multi30k-en-de.py'
terms = dict(type='mmattn.TransformerAttention1d', terms='1111')
model = dict(positions='none', encoder_attention=terms, decoder_attention=terms, cross_attention=terms)
