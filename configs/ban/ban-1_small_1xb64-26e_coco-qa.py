_base_ = './ban-2_small_1xb64-26e_coco-qa.py'
model = dict(head=dict(num_glimpses=1))
