_base_ = './mutan_small_1xb128-20e_coco-qa.py'
# The peer of the fusion operators: the same network, with a perceptron of the concatenation in both fusions.
model = dict(head=dict(fusion=dict(_delete_=True, type='mmattn.ConcatFusion', hidden=True)))
