# VQA 2.0 with words, answers and targets of the fusion networks, and with their regions: 14×14 positions of ResNet-152,
# which `grid_features.py` writes.
_base_ = './vqa2.py'
dataset = dict(
    regions='resnet152',
    region_source=('resnet152', "'grid': 14"),
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
