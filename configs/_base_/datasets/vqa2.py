# VQA 2.0: see docs/visual_questions.md. `VQA2_ROOT` moves the data. Words of all splits, answers of train and val.
_base_ = './vqa.py'
data_root = '{{$VQA2_ROOT:data/vqa2}}'
dataset = dict(
    data_root=data_root,
    regions='regions',
    vocab_files=('questions_train.json', 'questions_val.json', 'questions_test.json'),
    answer_files=('questions_train.json', 'questions_val.json'),
)
train_dataloader = dict(batch_size=512, num_workers=4, dataset=dataset)
val_dataloader = dict(dataset=dataset)
test_dataloader = dict(dataset=dataset)
