# IWSLT'14, German to English, lower-cased, 10,000 BPE merges: `tools/dataset_converters/iwslt14.py de-en.tgz`.
# `IWSLT14_ROOT` moves the data.
_base_ = './parallel_text.py'
data_root = '{{$IWSLT14_ROOT:data/iwslt14}}'
train_dataloader = dict(num_workers=2, persistent_workers=True, dataset=dict(data_root=data_root))
val_dataloader = dict(dataset=dict(data_root=data_root))
test_dataloader = dict(dataset=dict(data_root=data_root))
