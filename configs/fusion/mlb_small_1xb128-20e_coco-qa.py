_base_ = './mutan_small_1xb128-20e_coco-qa.py'
# MUTAN with one branch.
model = dict(head=dict(fusion=dict(num_branches=1)))
