_base_ = './mutan_small_1xb128-20e_coco-qa.py'
# Polarity swap: the last branch swaps signs.
model = dict(
    head=dict(
        fusion=dict(
            relations=('add', 'multiply'),
            groups=((0, 1, 2, 3), (4,)),
            squash=('identity', 'identity', 'identity', 'identity', 'tanh'),
        )
    )
)
