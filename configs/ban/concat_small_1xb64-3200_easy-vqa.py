_base_ = './ban-2_small_1xb64-3200_easy-vqa.py'
model = dict(head=dict(_delete_=True, type='mmattn.ConcatHead'))
