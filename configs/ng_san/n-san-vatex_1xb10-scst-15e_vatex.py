_base_ = './san-vatex_1xb10-scst-15e_vatex.py'
model = dict(encoder_attention=dict(query_norm='instance'))
