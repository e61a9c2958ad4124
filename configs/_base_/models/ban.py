# BAN-4: a GRU of 1024 channels, 4 glimpses.
model = dict(
    type='mmattn.VQAModel',
    vocab_size=19905,
    num_answers=3129,
    num_features=2048,
    question_encoder=dict(type='mmattn.QuestionGRU', word_dim=300, embed_dim=1024),
    head=dict(type='mmattn.BANHead', num_glimpses=4),
)
