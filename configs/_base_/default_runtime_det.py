_base_ = './default_runtime.py'
default_scope = 'mmdet'
vis_backends = [dict(type='LocalVisBackend')]
visualizer = dict(_delete_=True, type='DetLocalVisualizer', vis_backends=vis_backends, name='visualizer')
log_processor = dict(type='LogProcessor', window_size=50, by_epoch=True)
tta_model = None
