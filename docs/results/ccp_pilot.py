"""The pilot's photographs of Clothing Co-Parsing, by which length and rate of the training are chosen."""

_base_ = './ccp.py'
train_dataloader = dict(
    dataset=dict(data_prefix=dict(img_path='img_dir/pilot_train', seg_map_path='ann_dir/pilot_train'))
)
val_dataloader = dict(dataset=dict(indices=None))
test_dataloader = dict(
    dataset=dict(data_prefix=dict(img_path='img_dir/pilot_val', seg_map_path='ann_dir/pilot_val'), indices=None)
)
