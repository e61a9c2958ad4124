_base_ = './ban-2_small_1xb64-13e_daquar.py'
model = dict(head=dict(_delete_=True, type='mmattn.ConcatHead'))
