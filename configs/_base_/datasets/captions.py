# What the data sets of captions share: 10 images with 5 captions each per batch; scores of the beam search.
dataset = dict(type='mmattn.COCOCaptionDataset', split='train')
train_dataloader = dict(
    batch_size=10,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='mmattn.DefaultSampler', shuffle=True),
    collate_fn=dict(type='mmattn.pad_collate'),
    dataset=dataset,
)
val_dataloader = dict(
    batch_size=50,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='mmattn.DefaultSampler', shuffle=False, round_up=False),
    collate_fn=dict(type='mmattn.pad_collate'),
    dataset=dict(dataset, split='val', test_mode=True),
)
test_dataloader = dict(val_dataloader, dataset=dict(dataset, split='test', test_mode=True))
val_evaluator = dict(type='mmattn.CaptionMetric', use_meteor=False)  # METEOR starts a program, for ten seconds
test_evaluator = dict(type='mmattn.CaptionMetric')
