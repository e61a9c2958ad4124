_base_ = './bi-sa_iwslt_1xb4000-50k_iwslt14-de-en.py'
model = dict(encoder_attention=dict(padding='learned'), decoder_attention=dict(padding='learned'))
