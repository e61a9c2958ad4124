# What the data sets of visual questions share: batches that the workers pad, and the official accuracy.
dataset = dict(type='mmattn.VQADataset', ann_file='questions_train.json')
train_dataloader = dict(
    batch_size=64,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='mmattn.DefaultSampler', shuffle=True),
    collate_fn=dict(type='mmattn.pad_collate'),
    dataset=dataset,
)
val_dataloader = dict(
    batch_size=256,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='mmattn.DefaultSampler', shuffle=False, round_up=False),
    collate_fn=dict(type='mmattn.pad_collate'),
    dataset=dict(dataset, ann_file='questions_val.json', test_mode=True),
)
test_dataloader = dict(val_dataloader, dataset=dict(dataset, ann_file='questions_test.json', test_mode=True))
val_evaluator = dict(type='mmattn.VQAAccuracy', question_types=False)
test_evaluator = dict(type='mmattn.VQAAccuracy')
