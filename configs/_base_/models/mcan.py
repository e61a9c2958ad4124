# MCAN: 6 + 6 layers of 512 channels, words of 300. The published checkpoint has 20,572 symbols, with two special ones.
model = dict(type='mmattn.MCAN', vocab_size=20574, num_answers=3129, num_features=2048)
