# Small, for 128 features per region: words of 300 channels and a GRU of 512, from scratch.
_base_ = './mutan.py'
model = dict(
    vocab_size=2366,
    num_answers=346,
    num_features=128,
    question_encoder=dict(word_dim=300, embed_dim=512, pretrained=None),
)
custom_hooks = []
