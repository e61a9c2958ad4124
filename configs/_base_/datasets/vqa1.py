# VQA 1.0: see docs/visual_questions.md. `VQA1_ROOT` moves the data. Words, answers and targets of the fusion networks.
_base_ = './vqa.py'
data_root = '{{$VQA1_ROOT:data/vqa1}}'
dataset = dict(
    data_root=data_root,
    # 14×14 positions of ResNet-152, which `grid_features.py` writes.
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
train_dataloader = dict(batch_size=128, num_workers=4, dataset=dataset)
val_dataloader = dict(dataset=dataset)
test_dataloader = dict(dataset=dataset)
