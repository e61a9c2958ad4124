# 2,550 questions of VQA 2.0: `tools/dataset_converters/vqa.py FOLDER --hold-out`. `COCO_VQA_MINI_ROOT` moves the data.
# Words and answers of the training alone; all answers.
_base_ = './vqa.py'
data_root = '{{$COCO_VQA_MINI_ROOT:data/coco_vqa_mini}}'
dataset = dict(
    data_root=data_root,
    regions='regions',
    vocab_files=('questions_train.json',),
    answer_files=('questions_train.json',),
    min_answers=1,
    max_words=14,
)
train_dataloader = dict(dataset=dataset)
val_dataloader = dict(dataset=dataset)
test_dataloader = dict(dataset=dataset)
