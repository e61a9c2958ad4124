_base_ = './mutan_small_1xb128-20e_coco-qa.py'
# Nonlinearity ensemble.
model = dict(
    head=dict(
        fusion=dict(
            query_activation=('identity', 'leaky_relu', 'selu', 'sigmoid', 'tanh'),
            value_activation='selu',
        )
    )
)
