# easy-VQA: `tools/dataset_converters/easy_vqa.py FOLDER`. `EASY_VQA_ROOT` moves the data. Pictures, without regions.
_base_ = './vqa.py'
data_root = '{{$EASY_VQA_ROOT:data/easy_vqa}}'
dataset = dict(
    data_root=data_root,
    images='images',
    vocab_files=('questions_train.json',),
    answer_files=('questions_train.json',),
    min_answers=1,
    normalize_answers=False,
    max_words=10,
)
train_dataloader = dict(sampler=dict(type='mmattn.InfiniteSampler'), dataset=dataset)
val_dataloader = dict(dataset=dataset)
test_dataloader = dict(dataset=dataset)
