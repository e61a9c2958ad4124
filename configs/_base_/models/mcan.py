# MCAN: 6 + 6 layers of 512 channels, words of 300.
model = dict(type='mmattn.MCAN', vocab_size=19905, num_answers=3129, num_features=2048)
