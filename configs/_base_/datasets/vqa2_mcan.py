# The same with words and targets of MCAN: its vocabulary also has the words of Visual Genome.
_base_ = './vqa2.py'
dataset = dict(
    vocab_files=(
        'questions_train.json',
        'questions_val.json',
        'questions_test.json',
        'questions_genome_train.json',
        'questions_genome_val.json',
    ),
    tokens='mcan',
    normalize_counts=True,
)
train_dataloader = dict(batch_size=64, dataset=dataset)
val_dataloader = dict(dataset=dataset)
test_dataloader = dict(dataset=dataset)
