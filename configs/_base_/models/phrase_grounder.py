# BAN with one glimpse: a GRU of 1280 channels, products of 3840.
model = dict(
    type='mmattn.PhraseGrounder',
    vocab_size=18000,
    num_features=2048,
    embed_dim=1280,
    question_encoder=dict(type='mmattn.QuestionGRU', word_dim=300),
    scorer=dict(type='mmattn.BilinearLogits', embed_dim=3840),
)
