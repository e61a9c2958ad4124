_base_ = './ban_small_1xb64-13e_flickr8k-entities.py'
# The peer: a hidden layer that reads phrase and region, concatenated.
model = dict(scorer=dict(type='mmattn.ConcatLogits'))
