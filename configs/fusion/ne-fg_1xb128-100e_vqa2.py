_base_ = './mutan_1xb128-100e_vqa2.py'
# Nonlinearity ensemble and feature gating: the last branch is the gate.
model = dict(
    head=dict(
        fusion=dict(
            query_activation=('identity', 'leaky_relu', 'selu', 'sigmoid', 'tanh'),
            value_activation='selu',
            relations=('add', 'multiply'),
            groups=((0, 1, 2, 3), (4,)),
            squash=('identity', 'identity', 'identity', 'identity', 'sigmoid'),
        )
    )
)
