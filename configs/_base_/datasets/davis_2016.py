# DAVIS-2016: one object a clip, masks of 0 and 255, lists of paths. `DAVIS_2016_ROOT` moves the data.
_base_ = './davis_2017.py'
data_root = '{{$DAVIS_2016_ROOT:data/DAVIS_2016}}'
train_dataloader = dict(dataset=dict(data_root=data_root, ann_file='ImageSets/480p/train.txt', single_object=True))
val_dataloader = dict(dataset=dict(data_root=data_root, ann_file='ImageSets/480p/val.txt', single_object=True))
test_dataloader = val_dataloader
