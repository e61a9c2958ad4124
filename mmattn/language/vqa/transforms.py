"""Transforms that make a sample of a visual question: its picture, the numbers of its words, its targets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from mmcv.transforms import BaseTransform
from torch import Tensor

from mmattn.engine.data_sampling import index_generator
from mmattn.registry import TRANSFORMS
from mmattn.utils.images import decoding, deep_picture_fault, open_whole

from .answers import answer_score


@TRANSFORMS.register_module()
class LoadPicture(BaseTransform):
    """Load a picture, ``img_path``.

    To ``inputs``, it adds 'image', float32 ``(3, H, W)``, RGB from 0 to 1, also ``size`` (width, height). An unreadable
    picture raises a ValueError.

    Example:
        >>> from PIL import Image
        >>> Image.new('RGB', (8, 6)).save('42.png')
        >>> LoadPicture()(dict(img_path='42.png', inputs={}))['inputs']['image'].shape
        torch.Size([3, 6, 8])
    """

    def transform(self, results: dict) -> dict:
        """Add the picture."""
        image = read_picture(results['img_path'])
        results['inputs']['image'] = image
        results['size'] = tuple(image.shape[:0:-1])
        return results


@TRANSFORMS.register_module()
class EncodeQuestion(BaseTransform):
    """Convert the text of a question to the numbers of its words.

    To ``inputs``, it adds 'question', int64 ``(max_words)``, padded on the right, by the tokenizer of the data set.

    Example:
        >>> from mmattn.language.vqa import QuestionTokenizer
        >>> tokenizer = QuestionTokenizer(['a', 'dog'], max_words=3)
        >>> EncodeQuestion()(dict(question='A dog?', tokenizer=tokenizer, inputs={}))['inputs']['question']
        tensor([4, 5, 1])
    """

    def transform(self, results: dict) -> dict:
        """Add the numbers."""
        results['inputs']['question'] = results['tokenizer'](results['question'])
        return results


@TRANSFORMS.register_module()
class AnswerTargets(BaseTransform):
    """Make the target of a training question of its answers, which do not stay in the sample.

    To ``inputs``, it adds 'targets', float32 ``(A)``, the scores of all answers that the model can give, or, if
    ``target`` of the data set is 'sampled', 'answer', int64 ``()``, one of them. It is drawn in proportion to its
    count, by seed and position of the sample if the sampler is one of mmattn.

    Example:
        >>> from mmattn.language.vqa.answers import AnswerIndex
        >>> index = AnswerIndex(['puppy', 'dog'])
        >>> results = dict(answers=['dog'] * 2 + ['puppy'] * 8, answer_index=index, target='soft', inputs={})
        >>> AnswerTargets()(results)['inputs']['targets']
        tensor([1.0000, 0.6000])
    """

    def transform(self, results: dict) -> dict:
        """Add the target."""
        answers, inputs = results.pop('answers'), results['inputs']
        counts = results['answer_index'].counts(answers)
        labels = [*counts]
        if results['target'] == 'soft':
            scores = torch.tensor([answer_score(count, len(answers)) for count in counts.values()])
            targets = torch.zeros(len(results['answer_index'].numbers))
            inputs['targets'] = targets.index_put_((torch.tensor(labels, dtype=torch.int64),), scores)
        else:
            drawn = index_generator(results['sample_idx']).choices(labels, [*counts.values()])
            inputs['answer'] = torch.tensor(drawn[0])
        return results


def read_picture(path: str | Path) -> Tensor:
    """Read a picture as float32 ``(3, H, W)``, RGB from 0 to 1. A ValueError names an unreadable file."""
    with decoding(path), open(path, 'rb') as file:
        image = open_whole(file)
        if fault := deep_picture_fault(image):
            raise ValueError(fault)
        pixels = np.array(image.convert('RGB'))
    return torch.from_numpy(pixels).permute(2, 0, 1) / 255
