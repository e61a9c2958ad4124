# Words of 600 channels: GloVe, and its mixture by the questions and COCO's captions. `captions_{train,val}2014.json` of
# COCO lie beside the questions.
_base_ = './ban-8_1xb512-13e_vqa2-trainval-genome.py'
model = dict(question_encoder=dict(word_dim=600))
custom_hooks = [
    dict(
        type='mmattn.WordVectorHook',
        file='{{$GLOVE_ROOT:data/glove}}/glove.6B.300d.txt',
        mixture=[
            *(f'{_base_.data_root}/questions_{part}.json' for part in ('train', 'val', 'test')),
            *(f'{_base_.data_root}/questions_genome_{part}.json' for part in ('train', 'val')),
            *(f'{_base_.data_root}/captions_{part}2014.json' for part in ('train', 'val')),
        ],
    )
]
