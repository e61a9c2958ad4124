# Section 5.3, with its appearance model. What it leaves open is our choice: ResNet-50 without its last stage, 128
# channels, 8 heads, 3 + 3 layers. Offsets reach across the thesis's largest maps, of 128 cells.
norm_cfg = dict(type='BN', requires_grad=True)
attention = dict(type='mmattn.GridAttention3d', num_heads=8, max_offset=127)
model = dict(
    type='mmattn.SST',
    data_preprocessor=dict(type='mmattn.ClipDataPreprocessor'),
    backbone=dict(
        type='mmseg.ResNet',
        depth=50,
        num_stages=3,
        out_indices=(2,),
        strides=(1, 2, 1),
        dilations=(1, 1, 2),
        norm_cfg=norm_cfg,
        norm_eval=True,
        style='pytorch',
        init_cfg=dict(type='Pretrained', checkpoint='torchvision://resnet50'),
    ),
    in_channels=1024,
    embed_dims=128,
    attention=attention,
    encoder_layers=3,
    decoder_layers=3,
    appearance=True,
    test_cfg=dict(scale=(432, 240)),
)
