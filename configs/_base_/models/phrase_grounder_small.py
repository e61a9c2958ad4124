# Small, for 128 features per region: a GRU of 256 channels.
_base_ = './phrase_grounder.py'
model = dict(vocab_size=7724, num_features=128, embed_dim=256, scorer=dict(embed_dim=768))
