# YouTube-VOS 2018: {train,valid}/{JPEGImages,Annotations,meta.json}. `YOUTUBE_VOS_2018_ROOT` moves the data.
# The truth of `valid` is not public: nothing is validated in training, and a test writes what the server takes.
_base_ = './davis_2017.py'
data_root = '{{$YOUTUBE_VOS_2018_ROOT:data/youtube_vos_2018}}'
train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='mmattn.YouTubeVOSDataset',
        data_root=f'{data_root}/train',
        pipeline={{_base_.train_pipeline}},
    )
)
val_dataloader = None
val_evaluator = None
test_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='mmattn.YouTubeVOSDataset',
        data_root=f'{data_root}/valid',
        seen='../train/meta.json',
        test_mode=True,
        pipeline={{_base_.test_pipeline}},
    )
)
test_evaluator = dict(skip_last=False, submission=True)
