# Two models of cross-entropy, made and tested as eta-ensemble_1xb15-scst-15e_coco-captions.py.
_base_ = './eta_1xb15-15e_coco-captions.py'
model = dict(_delete_=True, type='mmattn.CaptionEnsemble', members=[_base_.model] * 2)
