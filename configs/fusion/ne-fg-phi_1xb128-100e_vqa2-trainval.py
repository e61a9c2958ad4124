_base_ = './mutan_1xb128-100e_vqa2-trainval.py'
# Nonlinearity ensemble, feature gating, and post-fusion networks of six layers of 128 channels.
model = dict(
    head=dict(
        fusion=dict(
            query_activation=('identity', 'leaky_relu', 'selu', 'sigmoid', 'tanh'),
            value_activation='selu',
            relations=('add', 'multiply'),
            groups=((0, 1, 2, 3), (4,)),
            squash=('identity', 'identity', 'identity', 'identity', 'sigmoid'),
            post_network=dict(hidden_dim=128, num_blocks=2),
        )
    )
)
