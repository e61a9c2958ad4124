# U-Net-BA with content logits times 1/√d, d channels per head. The thesis has no factor. Otherwise Table 4.5.
_base_ = './unet-ba_r18.py'
block = dict(type='mmattn.LocalBilateralAttention', scale=None)  # None: 1/√d
heads = dict(num_heads=8, iterations=3, share=True), dict(num_heads=8), dict(num_heads=4), dict(num_heads=4)
model = dict(decode_head=dict(block=[dict(block, **options) for options in heads]))
