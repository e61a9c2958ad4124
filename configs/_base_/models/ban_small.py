# Small, for 128 features per region: a GRU of 256 channels.
_base_ = './ban.py'
model = dict(vocab_size=2381, num_answers=346, num_features=128, question_encoder=dict(embed_dim=256))
