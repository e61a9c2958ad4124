# T_v and T_s, trained one by one (`model.sources=visual`, `model.sources=semantic`), made into one checkpoint in this
# order, and tested as eta-ensemble_1xb15-scst-15e_coco-captions.py.
_base_ = './eta_1xb15-scst-15e_coco-captions.py'
members = [dict(_base_.model, sources=source) for source in ('visual', 'semantic')]
model = dict(_delete_=True, type='mmattn.CaptionEnsemble', members=members)
