# WMT'14, English to German, Google's release, 32,000 BPE merges: `tools/dataset_converters/wmt14.py en-de RELEASE`.
# `WMT14_EN_DE_ROOT` moves the data.
_base_ = './parallel_text.py'
data_root = '{{$WMT14_EN_DE_ROOT:data/wmt14_en_de}}'
train_dataloader = dict(num_workers=2, persistent_workers=True, dataset=dict(data_root=data_root))
val_dataloader = dict(dataset=dict(data_root=data_root))
test_dataloader = dict(dataset=dict(data_root=data_root))
val_evaluator = dict(compound_split=True)  # as in the literature on this pair
test_evaluator = val_evaluator
