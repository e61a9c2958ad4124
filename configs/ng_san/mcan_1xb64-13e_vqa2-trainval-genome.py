# For the test server: train and val, and Visual Genome. Without validation, the last checkpoint.
_base_ = './mcan_1xb64-13e_vqa2.py'
train_dataloader = dict(
    dataset=dict(
        ann_file=('questions_train.json', 'questions_val.json'),
        extra_files=('questions_genome_train.json', 'questions_genome_val.json'),
    )
)
val_dataloader = None
val_evaluator = None
val_cfg = None
test_dataloader = dict(dataset=dict(ann_file='questions_test.json'))
default_hooks = dict(checkpoint=dict(save_best=None))
