_base_ = './ban_small_1xb64-13e_flickr8k-entities.py'
# A prior: place and size of the regions, without their features.
model = dict(reads='boxes')
