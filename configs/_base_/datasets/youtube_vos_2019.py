# YouTube-VOS 2019, laid out as that of 2018. `YOUTUBE_VOS_2019_ROOT` moves the data.
_base_ = './youtube_vos_2018.py'
data_root = '{{$YOUTUBE_VOS_2019_ROOT:data/youtube_vos_2019}}'
train_dataloader = dict(dataset=dict(data_root=f'{data_root}/train'))
test_dataloader = dict(dataset=dict(data_root=f'{data_root}/valid'))
