"""Transform that makes a training sample of captions: choose some, and convert their words to numbers."""

from __future__ import annotations

import torch
from mmcv.transforms import BaseTransform
from torch.nn.utils.rnn import pad_sequence

from mmattn.engine.data_sampling import index_generator
from mmattn.language.text.vocabulary import PAD
from mmattn.registry import TRANSFORMS


@TRANSFORMS.register_module()
class EncodeCaptions(BaseTransform):
    """Choose captions of an image, and convert them to numbers.

    If the image has fewer or more captions than ``captions_per_image`` of the data set, all are repeated as often as
    they fit, and the rest are chosen at random, by seed and position of the sample if the sampler is one of mmattn.

    To ``inputs``, it adds 'captions', int64 ``(captions_per_image, L)``, padded, with ``</s>``.

    Example:
        >>> from mmattn.language import Vocabulary
        >>> shared = dict(vocabulary=Vocabulary(['a', 'dog']), max_words=2, captions_per_image=2, sample_idx=0)
        >>> EncodeCaptions()(dict(shared, words=['dog', 'a dog runs'], inputs={}))['inputs']['captions']
        tensor([[5, 2, 1],
                [4, 5, 2]])
    """

    def transform(self, results: dict) -> dict:
        """Add the captions."""
        captions = encode_captions(results)
        times, rest = divmod(results['captions_per_image'], len(captions))
        chosen = sorted(index_generator(results['sample_idx']).sample(range(len(captions)), rest))
        rows = captions * times + [captions[i] for i in chosen]
        results['inputs']['captions'] = pad_sequence([*map(torch.tensor, rows)], batch_first=True, padding_value=PAD)
        return results


def encode_captions(results: dict) -> list[list[int]]:
    """Convert all captions of an entry to numbers, cut after ``max_words`` words, with ``</s>``."""
    lines = (' '.join(line.split(' ')[: results['max_words']]) for line in results['words'])
    return [results['vocabulary'].encode(line) for line in lines]
