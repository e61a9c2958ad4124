_base_ = './mcan_1xb64-13e_vqa2.py'
model = dict(region_attention=dict(type='mmattn.RegionAttention', geometry='query_dependent'))
