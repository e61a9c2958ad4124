# The same with words, answers and targets of the fusion networks.
_base_ = './vqa2.py'
dataset = dict(
    vocab_files=('questions_train.json',),
    answer_files=('questions_train.json',),
    tokens='skip-thought',
    min_answers=1,
    num_answers=2000,
    normalize_answers=False,
    target='sampled',
)
train_dataloader = dict(batch_size=128, dataset=dataset)
val_dataloader = dict(dataset=dataset)
test_dataloader = dict(dataset=dataset)
