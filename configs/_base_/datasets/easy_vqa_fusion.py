# The same with words, answers and targets of the fusion networks.
_base_ = './easy_vqa.py'
dataset = dict(
    tokens='skip-thought',
    num_answers=2000,
    target='sampled',
)
train_dataloader = dict(dataset=dataset)
val_dataloader = dict(dataset=dataset)
test_dataloader = dict(dataset=dataset)
