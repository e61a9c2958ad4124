# VQA 2.0 for the fusion networks: they train on train and val, for the test server. There is no validation: the config
# sets val_cfg=None.
_base_ = './vqa2_fusion.py'
splits = ('questions_train.json', 'questions_val.json')
dataset = dict(vocab_files=splits, answer_files=splits)
train_dataloader = dict(dataset=dict(dataset, ann_file=splits))
test_dataloader = dict(dataset=dataset)
val_dataloader = None
val_evaluator = None
