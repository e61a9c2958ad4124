# Test of an ensemble: `tools/misc/ensemble_checkpoints.py A B --out ensemble.pth`, then tools/test.py.
_base_ = './eta_1xb15-scst-15e_coco-captions.py'
model = dict(_delete_=True, type='mmattn.CaptionEnsemble', members=[{{_base_.model}}, {{_base_.model}}])
