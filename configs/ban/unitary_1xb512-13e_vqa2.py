_base_ = './ban-4_1xb512-13e_vqa2.py'
model = dict(question_encoder=dict(embed_dim=1280), head=dict(_delete_=True, type='mmattn.UnitaryHead'))
