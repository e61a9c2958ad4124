# The training clips of YouTube-VOS 2018 in two parts, both with public masks:
# `tools/dataset_converters/youtube_vos_split.py` writes meta_{train,val}.json. `YOUTUBE_VOS_2018_ROOT` moves the data.
_base_ = './davis_2017.py'
data_root = '{{$YOUTUBE_VOS_2018_ROOT:data/youtube_vos_2018}}/train'
clips = dict(_delete_=True, type='mmattn.YouTubeVOSDataset', data_root=data_root)
train_dataloader = dict(dataset=dict(**clips, ann_file='meta_train.json', pipeline={{_base_.train_pipeline}}))
val_dataloader = dict(
    dataset=dict(**clips, ann_file='meta_val.json', test_mode=True, pipeline={{_base_.test_pipeline}})
)
test_dataloader = val_dataloader
val_evaluator = dict(skip_last=False)
test_evaluator = val_evaluator
