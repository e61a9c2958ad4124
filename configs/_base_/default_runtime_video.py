_base_ = './default_runtime.py'
default_scope = 'mmengine'
vis_backends = [dict(type='LocalVisBackend')]
visualizer = dict(_delete_=True, type='Visualizer', vis_backends=vis_backends, name='visualizer')
tta_model = None
