_base_ = './cc_mit-b0_4xb2-160k_ade20k-512x512.py'
model = dict(decode_head=dict(type='mmattn.BiCCHead'))
