"""Caption images by their region features, with a trained model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from mmattn.language.inferencer import Batch, SentenceInferencer, plain
from mmattn.language.models.generation import Hypothesis
from mmattn.language.regions.image_inputs import Stores, image_inputs, region_store, store_files
from mmattn.language.regions.region_store import RegionStore
from mmattn.utils.checks import check_count
from mmattn.utils.faults import shorten
from mmattn.utils.resumable import digest

from .annotations import read_attributes
from .captioner import CaptionEnsemble, Captioner


class StoredImage(NamedTuple):
    """An image in a region store."""

    store: RegionStore
    image_id: str
    attributes: list[int] | None  # numbers of the vocabulary, or None for a model without attributes

    def inputs(self) -> dict[str, Tensor]:
        """Load the inputs of a captioning model."""
        attributes = None if self.attributes is None else torch.tensor(self.attributes, dtype=torch.int64)
        return image_inputs(self.store[self.image_id], attributes)


class CaptionInferencer(SentenceInferencer):
    """Caption the images of a region store.

    The model is a captioning model or a :class:`CaptionEnsemble`, trained with :class:`COCOCaptionDataset`. Arguments:
    see :class:`mmattn.language.inferencer.LanguageInferencer`.

    Example::

        captions = CaptionInferencer('config.py', 'epoch_15.pth')
        captions('data/mine/regions')['predictions'][0]['caption']
        captions('data/mine/regions', ['beach', 'dog'], beam=5, n_best=3)
    """

    model: Captioner | CaptionEnsemble
    model_types = (Captioner, CaptionEnsemble)
    meta_keys = ('symbols',)
    dataset = 'mmattn.COCOCaptionDataset'

    def __call__(  # type: ignore[override]
        self,
        inputs: Stores,
        image_ids: Sequence[str] | None = None,
        attributes: str | Path | None = None,
        num_attributes: int | None = None,
        beam: int | None = None,
        length_penalty: float | None = None,
        n_best: int = 1,
        progress_file: str | Path | None = None,
        resume: bool = True,
    ) -> dict[str, list[dict]]:
        """Caption images.

        Args:
            inputs (str, Path, sequence of paths, or RegionStore): folders of region stores, or a store.
            image_ids (sequence of str, optional): different ids of images. Defaults to all, in the store's order.
            attributes (str or Path, optional): file for :func:`mmattn.language.captioning.annotations.read_attributes`.
                Required if the model reads attributes.
            num_attributes (int, optional): maximum number of attributes per image. Defaults to that of the training, or
                to 20 if the checkpoint does not record it.
            beam, length_penalty, n_best, progress_file, resume: see
                :class:`mmattn.language.inferencer.SentenceInferencer`.

        Returns:
            dict: 'predictions', one dict per image, in the order of ``image_ids``, with image_id (str), caption (str,
            words separated by spaces), score (float, log-probability divided by the length penalty) and n_best
            (list[dict], up to ``n_best`` captions with caption and score, the best first).
        """
        n_best = plain(n_best)
        options = self._options(beam, length_penalty, n_best)
        images = self.images(inputs, image_ids, attributes, num_attributes)
        settings = dict(
            batch_size=self.batch_size,
            image_ids=digest([image.image_id for image in images]),
            regions=store_files(images[0].store),
            attributes=digest([image.attributes for image in images]),
        )
        batches = self.preprocess(images)
        captions = self._run(batches, 'Captions', progress_file, resume, options, dict(n_best=n_best), **settings)
        return dict(predictions=[dict(image_id=image.image_id, **captions[i]) for i, image in enumerate(images)])

    def images(
        self,
        regions: Stores,
        image_ids: Sequence[str] | None = None,
        attributes: str | Path | None = None,
        num_attributes: int | None = None,
    ) -> list[StoredImage]:
        """Check the arguments of a call without running the model, and look up the images."""
        if num_attributes is None:
            num_attributes = self.meta.get('num_attributes', 20)
        check_count('num_attributes', num_attributes)
        store = region_store(regions)
        names = store.image_ids if image_ids is None else list(image_ids)
        if isinstance(image_ids, str) or not names or not all(isinstance(name, str) for name in names):
            raise ValueError(f'image_ids must be a sequence of str, not empty; got {image_ids!r}')
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise ValueError(f'image_ids must be different; got {", ".join(shorten(twice, 10))} more than once')
        store.check(names, self.model.num_features, features=False)
        kind, reads = type(self.model).__name__, self.model.reads_attributes
        if reads and attributes is None:
            raise ValueError(f'attributes must be the path of a file: this {kind} reads them')
        if not reads and attributes is not None:
            raise ValueError(f'attributes must be None: this {kind} reads none; got {attributes}')
        numbers: dict[str, list[int]] = {}
        if attributes is not None:
            numbers = read_attributes(attributes, names, self.vocabulary, num_attributes)
        return [StoredImage(store, name, numbers.get(name)) for name in names]

    @torch.no_grad()
    def forward(self, inputs: Batch, **options: Any) -> list[list[Hypothesis]]:  # type: ignore[override]
        """Caption a batch, with several hypotheses per image. ``options`` replace ``test_cfg``."""
        return self.model.describe(self._collated([image.inputs() for image in inputs.inputs]), **options)

    def postprocess(  # type: ignore[override]
        self, preds: Sequence[Sequence[Hypothesis]], n_best: int
    ) -> list[dict]:
        """Convert hypotheses, the best first, to the predictions of :meth:`__call__`, without ids."""
        predictions = []
        for hypotheses in preds:
            captions = [
                dict(caption=self.vocabulary.decode(hypothesis.tokens), score=hypothesis.score)
                for hypothesis in hypotheses[:n_best]
            ]
            predictions.append(dict(captions[0], n_best=captions))
        return predictions

    def visualize(  # type: ignore[override]
        self, inputs: StoredImage, caption: str, picture: Image.Image, references: Sequence[str] = ()
    ) -> str:
        """Draw the regions that the model looked at for each word of a caption.

        Args:
            inputs (StoredImage): the image, from :meth:`images`.
            caption (str): 'caption' of the prediction, or another caption.
            picture, references: see :func:`mmattn.language.captioning.region_pictures.caption_figure`.

        Returns:
            str: a figure for :func:`mmattn.language.captioning.region_pictures.caption_page`.
        """
        from .region_pictures import caption_figure

        weights = self.region_weights(inputs, caption)
        regions = inputs.store[inputs.image_id]
        return caption_figure(picture, regions, caption.split(), weights, inputs.image_id, references)

    def region_weights(self, inputs: StoredImage, caption: str) -> Tensor:
        """Compute the attention weights of each word of a caption to the regions, float ``(words, regions)``."""
        from .region_pictures import region_attention

        numbers = self.vocabulary.encode(caption)
        tokens = torch.tensor(numbers, device=next(self.model.parameters()).device)
        return region_attention(self.model, self._collated([inputs.inputs()]), tokens)[: len(numbers) - 1]
