# BAN with one glimpse: a GRU of 1024 channels, products of three times as many.
model = dict(
    type='mmattn.PhraseGrounder',
    vocab_size=18000,
    num_features=2048,
    embed_dim=1024,
    question_encoder=dict(type='mmattn.QuestionGRU', word_dim=300),
    scorer=dict(type='mmattn.BilinearLogits', embed_dim=3072),
)
