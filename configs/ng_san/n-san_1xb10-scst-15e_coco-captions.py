_base_ = './san_1xb10-scst-15e_coco-captions.py'
model = dict(encoder_attention=dict(query_norm='instance'))
