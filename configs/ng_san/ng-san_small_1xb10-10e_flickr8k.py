_base_ = './san_small_1xb10-10e_flickr8k.py'
model = dict(encoder_attention=dict(query_norm='instance', geometry='query_dependent'))
