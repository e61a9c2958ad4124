_base_ = './mutan_small_1xb64-3200_easy-vqa.py'
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
