_base_ = './sa_tiny_1xb4096_multi30k-en-de.py'
model = dict(stack='Torch')
