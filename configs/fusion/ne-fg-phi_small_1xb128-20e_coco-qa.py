_base_ = './ne-fg_small_1xb128-20e_coco-qa.py'
# Post-fusion networks of six layers of 128 channels.
model = dict(head=dict(fusion=dict(post_network=dict(hidden_dim=128, num_blocks=2))))
