_base_ = './san_small_1xb10-10e_flickr8k.py'
# The peer: the layers of nn.Transformer.
model = dict(stack='Torch')
