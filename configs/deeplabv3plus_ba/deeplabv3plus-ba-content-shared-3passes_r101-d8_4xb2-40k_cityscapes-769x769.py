# Table 4.2, row g: content alone, shared projections, three passes.
_base_ = './deeplabv3plus-ba_r101-d8_4xb2-40k_cityscapes-769x769.py'
model = dict(
    decode_head=dict(block=dict(type='mmattn.LocalBilateralAttention', geometric=False, share=True, iterations=3))
)
