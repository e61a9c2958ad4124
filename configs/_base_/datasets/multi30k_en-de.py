# Multi30k, task 1, English to German, lower-cased: `tools/dataset_converters/multi30k.py RELEASE`.
# `MULTI30K_ROOT` moves the data.
_base_ = './parallel_text.py'
data_root = '{{$MULTI30K_ROOT:data/multi30k}}'
train_dataloader = dict(batch_sampler=dict(max_tokens=4096), dataset=dict(data_root=data_root))
val_dataloader = dict(dataset=dict(data_root=data_root))
test_dataloader = dict(dataset=dict(data_root=data_root))
