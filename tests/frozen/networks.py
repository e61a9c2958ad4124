"""Small networks of every kind: their weights by name, and what they compute from fixed inputs."""

import zlib

import numpy as np
import torch
from mmengine.config import ConfigDict
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import BaseDataElement, PixelData

WORDS = [[7, 4, 5, 2], [6, 3, 2, 0]]  # two sentences with </s>, the second padded


def drawn(name, shape):
    """Numbers that depend on a name alone."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return torch.from_numpy(rng.standard_normal(tuple(shape)))


def fill(model):
    """Give each weight numbers that depend on its name, so that they do not depend on the order of construction."""
    with torch.no_grad():
        for name, x in model.state_dict().items():
            if x.is_floating_point() and name.endswith('running_var'):
                x.copy_(drawn(name, x.shape) ** 2 + 0.5)
            elif x.is_floating_point() and x.ndim > 1:
                x.copy_(drawn(name, x.shape) / x[0].numel() ** 0.5)
            elif x.is_floating_point():
                x.copy_(drawn(name, x.shape) / 4 + name.endswith('weight'))


def clip():
    """Two frames, and a mask of the first one with two objects."""
    mask = torch.zeros(32, 40, dtype=torch.uint8)
    mask[4:20, 4:18], mask[10:30, 24:38] = 1, 2
    sample = BaseDataElement(given={0: mask}, gt_masks=PixelData(data=torch.stack([mask, mask])))
    sample.set_metainfo(dict(first_frames={1: 0, 2: 0}, frame_numbers=[0, 3], ori_shape=mask.shape))
    return sample


def sentences(config):
    """What the models of sentences read: words, and regions of two images, the last of the second one padded."""
    boxes = torch.tensor([[[0, 0, 20, 10], [5, 5, 40, 30], [10, 2, 30, 28]]], dtype=torch.float64).repeat(2, 1, 1)
    width = next((config[key] for key in ('num_features', 'feature_dim') if config.get(key)), 2048)
    return dict(
        source=torch.tensor(WORDS),
        target=torch.tensor(WORDS),
        question=torch.tensor([[7, 4, 5], [6, 3, 0]]),
        caption=torch.tensor([[7, 4, 5], [6, 3, 0]]),
        captions=torch.tensor(WORDS)[:, None],
        attributes=torch.tensor([[5, 6], [4, 0]]),
        phrases=torch.tensor([[0, 2], [1, 0]]),
        phrase_mask=torch.tensor([[False, False], [False, True]]),
        features=drawn('features', (2, 3, width)).abs(),
        region_mask=torch.tensor([[False] * 3, [False, False, True]]),
        boxes=boxes,
        sizes=torch.tensor([[40, 30]] * 2),
        image=drawn('image', (2, 3, 64, 64)).sigmoid(),
    )


def outputs(model, config):
    """What a model computes without its loss: tensors."""
    if config['scope'] == 'mmseg':
        return [model(drawn('image', (1, 3, 64, 96)), mode='tensor')]
    if config['model']['type'] == 'mmattn.SST':
        return model(drawn('frames', (1, 2, 3, 32, 40)), [clip()], mode='tensor')
    if config['model']['type'] == 'mmattn.LabelPropagation':
        return [model.extract_feat(drawn('frames', (2, 3, 32, 40)))[0]]
    inputs = sentences(config['model'])
    if config['model']['type'] == 'mmattn.CaptionEnsemble':
        found = [hypothesis for each in model.describe(inputs) for hypothesis in each]
        return [torch.tensor([x.score for x in found]), torch.tensor([t for x in found for t in x.tokens])]
    return [model(inputs, mode='tensor')]


def as_written_now(part):
    """Return a config of then for today's layers: Transformer attention had a bias of its query, in 2-D with a norm."""
    if isinstance(part, dict):
        kind, own = part.get('type'), {}
        if kind == 'mmattn.TransformerAttention1d' or (kind == 'mmattn.TransformerAttention2d' and 'norm_cfg' in part):
            own['query_bias'] = True
        return ConfigDict({key: as_written_now(value) for key, value in part.items()}, **own)
    return [*map(as_written_now, part)] if isinstance(part, list | tuple) else part


def describe(config):
    """The shapes of a network's weights by name, and, of each output, its shape and five sums of its numbers."""
    init_default_scope(config['scope'])
    torch.manual_seed(0)
    model = MODELS.build(as_written_now(config['model'])).double().eval()
    fill(model)
    with torch.no_grad():
        found = [x.double() for x in outputs(model, config)]
    return dict(
        state={name: list(x.shape) for name, x in model.state_dict().items()},
        outputs=[[list(x.shape), (drawn('sums', (5, x.numel())) @ x.flatten()).tolist()] for x in found],
    )
