_base_ = './eta_small_1xb10-10e_flickr8k.py'
# T_v: regions alone, and a plain decoder.
model = dict(sources='visual')
