_base_ = './ne_small_1xb128-20e_coco-qa.py'
# Feature gating: the last branch is the gate.
model = dict(
    head=dict(
        fusion=dict(
            relations=('add', 'multiply'),
            groups=((0, 1, 2, 3), (4,)),
            squash=('identity', 'identity', 'identity', 'identity', 'sigmoid'),
        )
    )
)
