# COCO-QA: `tools/dataset_converters/coco_qa.py FOLDER`. `COCO_QA_ROOT` moves the data. One answer per question.
_base_ = './vqa.py'
data_root = '{{$COCO_QA_ROOT:data/coco_qa}}'
dataset = dict(
    data_root=data_root,
    regions='regions',
    vocab_files=('questions_train.json',),
    answer_files=('questions_train.json',),
    min_answers=1,
    normalize_answers=False,
    max_words=14,
)
train_dataloader = dict(dataset=dataset)
val_dataloader = dict(dataset=dataset)
test_dataloader = dict(dataset=dataset)
