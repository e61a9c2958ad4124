# What the data sets of phrase grounding share: captions with their phrases. The words of the training alone.
dataset = dict(type='mmattn.EntitiesDataset', regions='regions', vocab_file='entities_train.json')
train_dataloader = dict(
    batch_size=512,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='mmattn.DefaultSampler', shuffle=True),
    collate_fn=dict(type='mmattn.pad_collate', preprocessor='mmattn.PhraseDataPreprocessor'),
    dataset=dict(dataset, ann_file='entities_train.json'),
)
val_dataloader = dict(
    batch_size=64,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='mmattn.DefaultSampler', shuffle=False, round_up=False),
    collate_fn=dict(type='mmattn.pad_collate', preprocessor='mmattn.PhraseDataPreprocessor'),
    dataset=dict(dataset, ann_file='entities_val.json', test_mode=True),
)
test_dataloader = dict(val_dataloader, dataset=dict(dataset, ann_file='entities_test.json', test_mode=True))
val_evaluator = dict(type='mmattn.PhraseRecall')
test_evaluator = val_evaluator
