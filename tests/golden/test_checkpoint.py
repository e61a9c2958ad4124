"""A checkpoint that ``tools/train.py`` wrote with ``checkpoint_config.py`` loads, and predicts what it predicted."""

import numpy as np
import torch
from mmseg.apis import init_model

import mmattn.engine  # noqa: F401  (what a checkpoint holds besides tensors)

from .conftest import FOLDER


def test_a_recorded_checkpoint_loads_and_predicts_the_same(same_numbers):
    model = init_model(str(FOLDER / 'checkpoint_config.py'), str(FOLDER / 'checkpoint.pth'), device='cpu')
    state = torch.load(FOLDER / 'checkpoint.pth', weights_only=False)['state_dict']
    assert state.keys() == model.state_dict().keys()
    image = torch.from_numpy(np.random.RandomState(0).standard_normal((1, 3, 24, 40))).float()
    with torch.no_grad():
        features = model.extract_feat(image)
        heads = [model.decode_head, *model.auxiliary_head]
        logits = {type(head).__name__: head(features).numpy() for head in heads}
    same_numbers('predictions.txt', logits, rtol=1e-4, atol=2e-6)  # sums of float32 differ by processor
