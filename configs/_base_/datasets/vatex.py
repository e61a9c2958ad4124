# VATEX: ten captions a video, of up to 30 words; I3D features in a region store, one "region" per time step: see
# docs/captioning.md. `VATEX_ROOT` moves the data.
_base_ = './captions.py'
data_root = '{{$VATEX_ROOT:data/vatex}}'
dataset = dict(
    _delete_=True,
    type='mmattn.VATEXDataset',
    data_root=data_root,
    ann_file='vatex_training_v1.0.json',
    vocab_file='vatex_training_v1.0.json',
    regions='regions',
    max_words=30,
    captions_per_image=10,
)
train_dataloader = dict(dataset=dataset)
val_dataloader = dict(dataset=dict(dataset, ann_file='vatex_validation_v1.0.json', test_mode=True))
test_dataloader = dict(dataset=dict(dataset, ann_file='vatex_public_test_english_v1.1.json', test_mode=True))
