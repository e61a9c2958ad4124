_base_ = './mutan_1xb128-100e_vqa1.py'
# Nonlinearity ensemble.
model = dict(
    head=dict(
        fusion=dict(
            query_activation=('identity', 'leaky_relu', 'selu', 'sigmoid', 'tanh'),
            value_activation='selu',
        )
    )
)
