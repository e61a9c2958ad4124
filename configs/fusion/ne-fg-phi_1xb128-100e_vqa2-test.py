# The same training; for the test server.
_base_ = './ne-fg-phi_1xb128-100e_vqa2.py'
test_dataloader = dict(dataset=dict(ann_file='questions_test.json'))
