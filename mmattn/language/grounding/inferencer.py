"""Find the regions that phrases of captions describe, with a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmattn.language.inferencer import Batch, LanguageInferencer, plain, read_pairs
from mmattn.language.regions.image_inputs import Stores, image_inputs, region_store, store_files
from mmattn.language.regions.region_store import RegionStore
from mmattn.language.text.vocabulary import Vocabulary
from mmattn.utils.checks import check_count
from mmattn.utils.faults import Faults
from mmattn.utils.resumable import digest

from .entities import Caption, parse_phrases
from .phrase_grounder import PhraseGrounder
from .transforms import word_numbers


class GroundedCaption(NamedTuple):
    """A caption as text with brackets and as words and phrases, with the region store of its image."""

    image_id: str
    text: str
    caption: Caption
    store: RegionStore

    def phrases(self) -> list[str]:
        """Join the words of each phrase by spaces."""
        return [' '.join(self.caption.words[phrase.start : phrase.end]) for phrase in self.caption.phrases]

    def inputs(self, vocabulary: Vocabulary) -> dict[str, Tensor]:
        """Load the inputs of a model, as :class:`EntitiesDataset` does in tests."""
        return dict(
            image_inputs(self.store[self.image_id]),
            caption=torch.tensor(word_numbers(vocabulary, self.caption.words)),
            phrases=torch.tensor([phrase.end - 1 for phrase in self.caption.phrases]),
        )


class GroundingInferencer(LanguageInferencer):
    """Find the regions that phrases of captions describe, in the images of a region store.

    The model is a :class:`PhraseGrounder`, trained with :class:`EntitiesDataset`. Words outside its vocabulary are read
    as padding, and predictions list them. Arguments: see :class:`mmattn.language.inferencer.LanguageInferencer`.

    Example::

        ground = GroundingInferencer('config.py', 'epoch_13.pth')
        ground('data/mine/regions', [('42', '[a man] rides [a red bike]')])['predictions'][0]['phrases'][0]['box']
    """

    model: PhraseGrounder
    model_types = (PhraseGrounder,)
    meta_keys = ('symbols',)
    dataset = 'mmattn.EntitiesDataset'

    def __call__(  # type: ignore[override]
        self,
        inputs: Stores,
        captions: Sequence[tuple[str, str]],
        top_k: int = 5,
        progress_file: str | Path | None = None,
        resume: bool = True,
    ) -> dict[str, list[dict]]:
        """Ground the phrases of captions.

        Args:
            inputs (str, Path, sequence of paths, or RegionStore): folders of region stores, or a store.
            captions (sequence of tuple[str, str]): at least one pair of an image id and a caption with its phrases in
                brackets, such as '[a man] rides [a red bike]'.
            top_k (int): number of regions per phrase, at least 1. Defaults to 5.
            progress_file, resume: see :class:`mmattn.language.inferencer.LanguageInferencer`.

        Returns:
            dict: 'predictions', one dict per caption, in the order of ``captions``:

            * image_id (str), caption (str) and unknown (list[str]), the words that are not in the vocabulary.
            * phrases (list[dict]): text of each phrase (str) and its regions (list[dict]), up to ``top_k``, the best
              first. A region has region (int, number in the store), box (left, top, right, bottom in pixels) and score
              (float, probability). The phrase also contains region, box and score of the best region.
        """
        top_k = plain(top_k)
        check_count('top_k', top_k)
        grounded = self.captions(inputs, captions)
        pairs = [(caption.image_id, caption.text) for caption in grounded]
        settings = dict(batch_size=self.batch_size, captions=digest(pairs), images=store_files(grounded[0].store))
        batches = self.preprocess(grounded)
        predictions = self._run(batches, 'Phrases', progress_file, resume, {}, dict(top_k=top_k), **settings)
        return dict(
            predictions=[
                dict(
                    image_id=caption.image_id,
                    caption=caption.text,
                    unknown=[word for word in dict.fromkeys(caption.caption.words) if word not in self.vocabulary],
                    phrases=[
                        dict(phrase=text, **regions[0], regions=regions)
                        for text, regions in zip(caption.phrases(), predictions[i]['phrases'])
                    ],
                )
                for i, caption in enumerate(grounded)
            ]
        )

    def captions(self, inputs: Stores, captions: Sequence[tuple[str, str]]) -> list[GroundedCaption]:
        """Check the arguments of a call without running the model, and parse the captions."""
        pairs = read_pairs('captions', captions)
        store = region_store(inputs)
        grounded, faults = [], []
        for number, (image_id, text) in enumerate(pairs, 1):
            try:
                caption = parse_phrases(text)
                if not caption.phrases:
                    raise ValueError('no phrase in brackets, such as [a man] rides [a red bike]')
                grounded.append(GroundedCaption(image_id, text, caption, store))
            except ValueError as error:
                faults.append(f'caption {number}, {text!r}: {error}')
        Faults('captions', faults).check()
        store.check([image for image, _ in pairs], self.model.num_features, features=False)
        return grounded

    @torch.no_grad()
    def forward(self, inputs: Batch) -> list[tuple[Tensor, Tensor]]:  # type: ignore[override]
        """Score a batch. Returns logits ``(P, N)`` and boxes ``(N, 4)`` for each caption."""
        samples = [caption.inputs(self.vocabulary) for caption in inputs.inputs]
        predictions = self.model(self._collated(samples), mode='predict')
        return [(prediction.pred_scores.cpu(), sample['boxes']) for prediction, sample in zip(predictions, samples)]

    def postprocess(  # type: ignore[override]
        self, preds: Sequence[tuple[Tensor, Tensor]], top_k: int
    ) -> list[dict]:
        """Select the ``top_k`` best regions for each phrase of each caption."""
        return [dict(phrases=[best_regions(scores, boxes, top_k) for scores in logits]) for logits, boxes in preds]

    def visualize(  # type: ignore[override]
        self,
        inputs: GroundedCaption,
        prediction: dict[str, Any],
        picture: np.ndarray | None = None,
        true_boxes: Sequence[Sequence[Sequence[float]]] = (),
    ) -> np.ndarray:
        """Draw the best box of each phrase: uint8 ``(height, width, 3)``, RGB.

        Args:
            inputs (GroundedCaption): the caption, from :meth:`captions`.
            prediction (dict): prediction for the caption.
            picture (np.ndarray, optional): the image or a reduced one, uint8 ``(H, W, 3)``, RGB. Defaults to white.
            true_boxes (sequence of sequence of boxes): annotated boxes of each phrase, such as
                :meth:`mmattn.language.grounding.entities.Entities.find_boxes` finds. The closest one is dashed.
        """
        from .phrase_pictures import draw_phrases  # late: it imports matplotlib

        phrases = [(phrase['phrase'], phrase['score']) for phrase in prediction['phrases']]
        boxes = [phrase['box'] for phrase in prediction['phrases']]
        return draw_phrases(phrases, boxes, inputs.store[inputs.image_id].size, picture, inputs.text, true_boxes)


def best_regions(scores: Tensor, boxes: Tensor, top_k: int) -> list[dict[str, Any]]:
    """Select the best regions of a phrase, the best first. ``scores`` are the logits of all regions, ``(N)``."""
    order = scores.sort(descending=True, stable=True).indices[:top_k].tolist()
    return [dict(region=j, box=boxes[j].tolist(), score=float(scores[j].sigmoid())) for j in order]
