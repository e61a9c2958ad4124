_base_ = './ban-8-glove_1xb512-13e_vqa2-trainval-genome.py'
model = dict(head=dict(counter=dict(type='mmattn.ObjectCounter')))
