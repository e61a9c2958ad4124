# VQA 2.0, train and val, and Visual Genome: for the test server. There is no validation: the config sets val_cfg=None.
_base_ = './vqa2.py'
train_dataloader = dict(
    dataset=dict(
        ann_file=('questions_train.json', 'questions_val.json'),
        extra_files=('questions_genome_train.json', 'questions_genome_val.json'),
    )
)
val_dataloader = None
val_evaluator = None
