# What the data sets for translation share: batches of similar lengths, bounded by tokens; BLEU.
dataset = dict(type='mmattn.ParallelTextDataset', split='train')
train_dataloader = dict(
    batch_size=10000,  # no bound on the number of sentences
    num_workers=0,  # to send hundreds of tensors between processes takes longer than to make them
    persistent_workers=False,
    sampler=dict(type='mmattn.DefaultSampler', shuffle=True),
    batch_sampler=dict(type='mmattn.TokenBatchSampler', max_tokens=4000, infinite=True),
    dataset=dataset,
)
val_dataloader = dict(
    batch_size=100,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(type='mmattn.DefaultSampler', shuffle=False, round_up=False),
    batch_sampler=dict(type='mmattn.TokenBatchSampler', max_tokens=4000),
    dataset=dict(dataset, split='val', test_mode=True),
)
test_dataloader = dict(val_dataloader, dataset=dict(dataset, split='test', test_mode=True))
val_evaluator = dict(type='mmattn.BLEU')
test_evaluator = val_evaluator
