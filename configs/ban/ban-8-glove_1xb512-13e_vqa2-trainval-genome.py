# Words of 600 channels: `tools/dataset_converters/word_mixture.py` writes the file.
_base_ = './ban-8_1xb512-13e_vqa2-trainval-genome.py'
model = dict(question_encoder=dict(word_dim=600))
custom_hooks = [dict(type='mmattn.WordVectorHook', file='{{$VQA2_ROOT:data/vqa2}}/word_vectors_600.txt')]
