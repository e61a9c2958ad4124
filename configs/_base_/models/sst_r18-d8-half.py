# The same frame, small enough for two CPU cores and trained from scratch: the first two stages of a ResNet-18 of half
# the width, whose stride is 8 as it is, and 64 channels.
_base_ = './sst_r50-d8.py'
model = dict(
    backbone=dict(
        depth=18,
        base_channels=32,
        stem_channels=32,
        num_stages=2,
        out_indices=(1,),
        strides=(1, 2),
        dilations=(1, 1),
        norm_eval=False,
        init_cfg=None,
    ),
    in_channels=64,
    embed_dims=64,
    # The clipped offsets are the largest of the training's map, 16×22. A test's map is of 26×46.
    attention=dict(num_heads=4, max_offset=96, clip_offset=(15, 21)),
    encoder_layers=2,
    decoder_layers=3,
    test_cfg=dict(_delete_=True, scale=(366, 206), max_frames=16),
)
