"""Random regions of images, in different numbers, and the batch of several samples."""

import torch


def random_regions(count, generator):
    """Features, boxes and the size of an image, in float64."""
    corner, sides = (torch.rand(count, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    boxes = torch.cat([50 * corner, 50 * corner + 2 + 40 * sides], 1)
    features = torch.randn(count, 6, generator=generator, dtype=torch.float64)
    return dict(features=features, boxes=boxes, sizes=torch.tensor([100, 92]))


def batch(model, samples):
    inputs = {name: [sample[name] for sample in samples] for name in samples[0]}
    return model.data_preprocessor(dict(inputs=inputs))['inputs']
