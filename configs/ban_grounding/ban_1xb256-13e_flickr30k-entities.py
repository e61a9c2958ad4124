# The published code: half of the batch and of the rate, and more channels.
_base_ = './ban_1xb512-13e_flickr30k-entities.py'
model = dict(embed_dim=1280, scorer=dict(embed_dim=3840))
train_dataloader = dict(batch_size=256)
optim_wrapper = dict(optimizer=dict(lr=2e-3))
