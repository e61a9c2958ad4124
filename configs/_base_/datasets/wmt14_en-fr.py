# WMT'14, English to French, 40,000 BPE merges: `tools/dataset_converters/wmt14.py en-fr FOLDER`.
# `WMT14_EN_FR_ROOT` moves the data.
_base_ = './parallel_text.py'
data_root = '{{$WMT14_EN_FR_ROOT:data/wmt14_en_fr}}'
train_dataloader = dict(num_workers=2, persistent_workers=True, dataset=dict(data_root=data_root))
val_dataloader = dict(dataset=dict(data_root=data_root))
test_dataloader = dict(dataset=dict(data_root=data_root))
