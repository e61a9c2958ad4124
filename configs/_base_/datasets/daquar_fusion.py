# The same with words, answers and targets of the fusion networks.
_base_ = './daquar.py'
dataset = dict(
    tokens='skip-thought',
    max_words=26,
    num_answers=2000,
    target='sampled',
)
train_dataloader = dict(batch_size=128, dataset=dataset)
val_dataloader = dict(dataset=dataset)
test_dataloader = dict(dataset=dataset)
