"""Base classes of the inferencers for models that read or write sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.config import Config
from mmengine.infer import BaseInferencer
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn

from mmattn._compat import load_weights
from mmattn.engine import check_checkpoint, inference_precision  # it also registers `_base_ = 'mmattn::…'`
from mmattn.utils import config_path
from mmattn.utils.checks import check_count
from mmattn.utils.devices import check_device
from mmattn.utils.resumable import Resumable, digest, weights_digest

from .models.embedding import vocabulary_size
from .models.generation import LengthPenalty
from .text.vocabulary import SPECIALS, Vocabulary

NamedWeights = tuple[str, dict[str, Tensor]]


@contextmanager
def record_attention(layers: Mapping[str, Any]) -> Iterator[list[NamedWeights]]:
    """Record the attention weights of all queries in each forward pass of some layers.

    ``layers`` maps names to layers with ``attention_weights`` and ``attention_kinds``. The context is a list that the
    running model fills with pairs ``(name of the layer, weights by kind)``. Weights are float
    ``(heads, queries, keys)`` on the CPU, for the first sample of the batch, and their rows sum to 1.
    """
    rows: list[NamedWeights] = []

    def before(name: str, module: Any, args: tuple[Tensor, ...], kwargs: dict) -> None:
        queries = torch.arange(args[0].shape[1], device=args[0].device)[:, None]
        weights = {
            kind: module.attention_weights(*args, *kwargs.values(), queries=queries, kind=kind)[0].cpu()
            for kind in module.attention_kinds
        }
        rows.append((name, weights))

    handles = [
        module.register_forward_pre_hook(partial(before, name), with_kwargs=True) for name, module in layers.items()
    ]
    try:
        yield rows
    finally:
        for handle in handles:
            handle.remove()


def plain(x: Any) -> Any:
    """Convert a NumPy number to a Python number."""
    return x.item() if isinstance(x, np.generic) else x


class Batch(NamedTuple):
    """Inputs that are processed together, and their indices among all inputs."""

    indices: list[int]
    inputs: list[Any]


def in_batches(inputs: Sequence[Any], size: int) -> list[Batch]:
    """Divide inputs into batches, in their order."""
    starts = range(0, len(inputs), size)
    indices = [[*range(start, min(start + size, len(inputs)))] for start in starts]
    return [Batch(part, [inputs[index] for index in part]) for part in indices]


def read_config(model: Any) -> Config:
    """Read a config from a path, which may start with 'mmattn::'. A ``Config`` is returned unchanged."""
    if isinstance(model, Config):
        return model
    if not isinstance(model, str | Path):
        raise TypeError(f'model must be a Config or the path of one; got {type(model).__name__}')
    shipped = str(model).startswith('mmattn::')
    return Config.fromfile(config_path(str(model).removeprefix('mmattn::')) if shipped else model)


def read_pairs(name: str, pairs: Any) -> list[tuple[str, str]]:
    """Check that the argument ``name``, such as 'questions', has at least one pair of image id and text."""
    rows = list(pairs) if isinstance(pairs, Iterable) and not isinstance(pairs, str) else []
    if not rows or not all(isinstance(row, list | tuple) and [*map(type, row)] == [str, str] for row in rows):
        raise ValueError(f'{name} must be pairs of image id and {name[:-1]}, at least one; got {pairs!r}')
    return rows


class LanguageInferencer(BaseInferencer):
    """Base of the inferencers for models that read or write sentences.

    The checkpoint contains the vocabulary, in ``meta.dataset_meta``, so no annotations are read. A subclass sets the
    class attributes, and defines ``forward`` for a :class:`Batch`, and ``postprocess``, which returns a dict per input.

    A call checks all its arguments before the model runs. It returns a dict with 'predictions', one dict per input, in
    the order of the inputs. Every call has these arguments:

    * progress_file (str or Path, optional): file that gets the finished predictions after every batch. Defaults to
      None.
    * resume (bool): continue an interrupted run from ``progress_file``, if it exists, with the same inputs and
      settings. The result is as without an interruption. False: the file is emptied first. Defaults to True.

    A call raises a ValueError if inputs have faults, or if ``progress_file`` is damaged or belongs to another run. It
    raises an OSError if a file cannot be read or written, or if another process uses ``progress_file``.

    The constructor raises a RuntimeError that lists the keys if the weights do not fit the model. It raises a
    ValueError if the config has a model of another kind, or if ``dataset_meta`` of the checkpoint is incomplete,
    invalid or has a vocabulary of another size than the model.

    Args:
        model (str, Path or Config): config or its path. Shipped configs have paths such as 'mmattn::bi_sa/….py'.
        weights (str or Path): path or URL of the checkpoint.
        device (str, optional): such as 'cpu' or 'cuda:1'. Defaults to a GPU if one is available.
        batch_size (int): inputs per batch, at least 1. Defaults to 64.
        show_progress (bool): show a progress bar, if the standard error stream is a terminal. Defaults to True.
        amp (bool): use mixed precision, see :func:`~mmattn.engine.inference_precision`. Defaults to False.
    """

    model_types: tuple[type, ...]  # the models that it accepts
    meta_keys: tuple[str, ...]  # of dataset_meta
    dataset: str  # the data set that sets them

    def __init__(
        self,
        model: str | Path | Config,
        weights: str | Path,
        device: str | None = None,
        batch_size: int = 64,
        show_progress: bool = True,
        amp: bool = False,
    ) -> None:
        check_count('batch_size', batch_size)
        self.batch_size = batch_size
        device = str(check_device(device))
        check_checkpoint(weights)
        self.weights = str(weights)
        cfg = read_config(model)
        super().__init__(cfg, self.weights, device, scope='mmattn', show_progress=show_progress)
        self.amp = amp
        self._precision = inference_precision(device, amp=amp)

    def preprocess(self, inputs: Sequence[Any]) -> list[Batch]:  # type: ignore[override]
        """Divide inputs into batches, in their order. Features are read later, with their batch."""
        return in_batches(inputs, self.batch_size)

    def _collated(self, samples: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        inputs = {name: [sample[name] for sample in samples] for name in samples[0]}
        return self.model.data_preprocessor(dict(inputs=inputs), False)['inputs']

    def _run(
        self,
        batches: Sequence[Batch],
        title: str,
        progress_file: str | Path | None,
        resume: bool,
        forward: dict[str, Any],
        postprocess: dict[str, Any],
        **settings: Any,
    ) -> dict[int, dict]:
        total = sum(len(batch.indices) for batch in batches)
        console = Console(stderr=True)
        hidden = not (self.show_progress and console.is_terminal)
        # everything on which predictions depend
        settings = dict(self._settings(), **forward, **postprocess, **settings) if progress_file is not None else {}
        with (
            Resumable(progress_file, settings, resume) as run,
            Progress(console=console, disable=hidden) as progress,
        ):
            # A batch is processed as a whole: rounding depends on its composition.
            batches = [batch for batch in batches if not run.done.keys() >= set(batch.indices)]
            unfinished = sum(len(batch.indices) for batch in batches)
            task = progress.add_task(title, total=total, completed=total - unfinished)
            for batch in batches:
                with self._precision:
                    outputs = self.forward(batch, **forward)
                predictions = self.postprocess(outputs, **postprocess)
                run.add(dict(zip(batch.indices, predictions)))
                progress.advance(task, len(batch.indices))
        return run.done

    def _settings(self) -> dict[str, Any]:
        return dict(
            amp=self.amp,
            model=digest(self.cfg.model.to_dict()),
            weights=weights_digest(self.model),
            vocabulary=digest({name: self.meta[name] for name in self.meta_keys}),
        )

    def _load_weights_to_model(self, model: nn.Module, checkpoint: dict | None, cfg: Any) -> None:
        if not isinstance(model, self.model_types):
            names = ' or '.join(kind.__name__ for kind in self.model_types)
            raise ValueError(f'the model must be a {names}; the config has {cfg.model.type}')
        assert checkpoint is not None
        self.meta = (checkpoint.get('meta') or {}).get('dataset_meta') or {}
        missing = [name for name in self.meta_keys if name not in self.meta]
        if missing:
            raise ValueError(
                f'{self.weights}: meta.dataset_meta has no {", ".join(missing)}; a checkpoint that was trained with '
                f'{self.dataset} has them'
            )
        try:
            self._read_meta()
        except (TypeError, ValueError) as error:
            raise ValueError(f'{self.weights}: meta.dataset_meta is invalid: {error}') from error
        rows = vocabulary_size(model)
        if len(self.vocabulary) != rows:
            raise ValueError(
                f'{self.weights}: its vocabulary has {len(self.vocabulary)} symbols, {len(SPECIALS)} special ones '
                f'included, but vocab_size of the model is {rows}: use the config that the training wrote to its work '
                f'dir, or --cfg-options model.vocab_size={len(self.vocabulary)}'
            )
        load_weights(model, checkpoint, self.weights)

    def _read_meta(self) -> None:
        self.vocabulary = Vocabulary(self.meta['symbols'])

    def _init_pipeline(self, cfg: Any) -> Any:
        """Return None: ``preprocess`` prepares inputs. A subclass may return a function for it."""

    def _init_collate(self, cfg: Any) -> Any:
        """Return None: ``preprocess`` makes batches."""

    def _init_visualizer(self, cfg: Any) -> None:
        """Return None: pictures of attention need no visualizer."""


class SentenceInferencer(LanguageInferencer):
    """Base of the inferencers for models that write sentences by beam search.

    ``forward`` returns the hypotheses for a batch, with the options of :meth:`_options`. :class:`LanguageInferencer`
    documents arguments and errors. Every call has three further arguments:

    * beam (int, optional): number of hypotheses per input. Defaults to ``test_cfg`` in the config.
    * length_penalty (float, optional): exponent α of the length penalty. Its kind and its default are in the config.
    * n_best (int): number of sentences per input, at most ``beam``. Defaults to 1.
    """

    def _options(self, beam: int | None, length_penalty: float | None, n_best: int) -> dict[str, Any]:
        arguments = dict(beam=plain(beam), length_penalty=plain(length_penalty))
        options = {**self.model.test_cfg, **{name: x for name, x in arguments.items() if x is not None}}
        check_count('beam', options['beam'])
        check_count('n_best', n_best)
        if n_best > options['beam']:
            raise ValueError(f'n_best must be at most beam, {options["beam"]}; got {n_best}')
        LengthPenalty(options['length_penalty'], options['penalty_kind'])
        return options
