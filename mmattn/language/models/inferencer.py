"""Base classes of the inferencers of models that read or write sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from hashlib import sha256
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
from mmattn.engine import check_checkpoint  # it also registers `_base_ = 'mmattn::…'`
from mmattn.language.text.vocabulary import SPECIALS, Vocabulary
from mmattn.utils import config_path
from mmattn.utils.checks import check_count
from mmattn.utils.devices import check_device
from mmattn.utils.trained_model import warn_of_differences

from .embedding import vocabulary_size
from .generation import LengthPenalty
from .progress_file import digest, open_progress

Rows = tuple[str, dict[str, Tensor]]


@contextmanager
def record_attention(layers: Mapping[str, Any]) -> Iterator[list[Rows]]:
    """Record the attention weights of all queries in each forward pass of some layers.

    Args:
        layers (mapping): name → a layer with ``attention_weights`` and ``attention_kinds``.

    Yields:
        list[tuple[str, dict[str, Tensor]]]: name of the layer, and kind → weights of the first sample of the batch,
        float ``(heads, queries, keys)`` on the CPU, whose rows sum to 1. The list is filled while the model runs.

    Example:
        >>> from mmattn.layers import BilateralMultiheadAttention
        >>> layer, x = BilateralMultiheadAttention(16, num_heads=4, position='none'), torch.randn(1, 7, 16)
        >>> with record_attention({'attention': layer}) as rows:
        ...     _ = layer(x, x, x)
        >>> rows[0][0], rows[0][1]['content'].shape
        ('attention', torch.Size([4, 7, 7]))
    """
    found: list[Rows] = []

    def before(name: str, module: Any, args: tuple[Tensor, ...], kwargs: dict) -> None:
        queries = torch.arange(args[0].shape[1], device=args[0].device)[:, None]
        weights = {
            kind: module.attention_weights(*args, *kwargs.values(), queries=queries, kind=kind)[0].cpu()
            for kind in module.attention_kinds
        }
        found.append((name, weights))

    handles = [
        module.register_forward_pre_hook(partial(before, name), with_kwargs=True) for name, module in layers.items()
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def plain(x: Any) -> Any:
    """Return a number of NumPy as one of Python."""
    return x.item() if isinstance(x, np.generic) else x


class Batch(NamedTuple):
    """Inputs that are processed together.

    Attributes:
        indices (list[int]): their indices in the input, from 0.
        inputs (list): what ``preprocess`` made of each.
    """

    indices: list[int]
    inputs: list[Any]


def in_batches(inputs: Sequence[Any], size: int) -> list[Batch]:
    """Divide inputs into batches, in their order.

    Example:
        >>> in_batches('abc', 2)
        [Batch(indices=[0, 1], inputs=['a', 'b']), Batch(indices=[2], inputs=['c'])]
    """
    starts = range(0, len(inputs), size)
    indices = [[*range(start, min(start + size, len(inputs)))] for start in starts]
    return [Batch(each, [inputs[index] for index in each]) for each in indices]


def read_config(model: Any) -> Config:
    """Return a config, given itself or by its path."""
    if isinstance(model, Config):
        return model
    if not isinstance(model, str | Path):
        raise TypeError(f'model must be a Config or the path of one; got {type(model).__name__}')
    shipped = str(model).startswith('mmattn::')
    return Config.fromfile(config_path(str(model).removeprefix('mmattn::')) if shipped else model)


def read_pairs(name: str, pairs: Any) -> list[tuple[str, str]]:
    """Return pairs of image id and text, at least one; ``name`` is that of the argument, such as 'questions'.

    Raises:
        ValueError: ``pairs`` is something else, or empty.
    """
    found = list(pairs) if isinstance(pairs, Iterable) and not isinstance(pairs, str) else []
    if not found or not all(isinstance(x, list | tuple) and [*map(type, x)] == [str, str] for x in found):
        raise ValueError(f'{name} must be pairs of image id and {name[:-1]}, at least one; got {pairs!r}')
    return found


class LanguageInferencer(BaseInferencer):
    """Base of the inferencers of models that read or write sentences.

    The checkpoint contains the vocabulary, in ``meta.dataset_meta``, so no annotations are read. A subclass sets the
    class attributes, and defines ``forward`` for a :class:`Batch`, and ``postprocess``, which returns a dict per input.

    A call checks all its arguments before the model runs, and returns a dict with 'predictions', one dict per input, in
    the order of the inputs. Every call has these arguments:

    * progress_file (str or Path, optional): file for the predictions that are finished; after each batch, its
      predictions are added. Defaults to None.
    * resume (bool): if ``progress_file`` exists, it must be the file of the same inputs and settings. Its batches are
      not processed again, and the result is that of an uninterrupted run. False: the file is emptied first. Defaults to
      True.

    A call raises a ValueError if inputs have faults, or if ``progress_file`` is damaged or belongs to another run; a
    BlockingIOError if another process uses ``progress_file``; and an OSError if a file cannot be read or written.

    Args:
        model (str, Path or Config): config of the model, or its path; that of a shipped config may be written as
            'mmattn::bi_sa/….py'.
        weights (str or Path): path or URL of the checkpoint.
        device (str, optional): such as 'cpu' or 'cuda:1'. Defaults to a GPU if one is available.
        batch_size (int): inputs per batch, at least 1. Defaults to 64.
        show_progress (bool): show a progress bar, if the standard error stream is a terminal. Defaults to True.

    Raises:
        OSError: the config or the checkpoint does not exist.
        RuntimeError: the weights do not fit the model; the message lists the keys.
        ValueError: the model of the config is of another kind; ``dataset_meta`` of the checkpoint is incomplete or
            invalid; its vocabulary has another size than that of the model; or there is no such device. The message
            names the checkpoint.
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
    ) -> None:
        check_count('batch_size', batch_size)
        self.batch_size = batch_size
        if not isinstance(weights, str | Path):
            raise TypeError(f'weights must be the path or URL of a checkpoint; got {type(weights).__name__}')
        found = check_device(device)
        self.weights = str(weights)
        check_checkpoint(self.weights)
        cfg = read_config(model)
        super().__init__(cfg, self.weights, str(found), scope='mmattn', show_progress=show_progress)

    def preprocess(self, inputs: Sequence[Any]) -> list[Batch]:  # type: ignore[override]
        """Divide inputs into batches, in their order. Features are read when a batch is processed."""
        return in_batches(inputs, self.batch_size)

    def _collated(self, samples: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Return the inputs of the model for some samples."""
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
        """Return the prediction of each input by its index.

        Args:
            batches (sequence of Batch): the inputs.
            title (str): title of the progress bar.
            progress_file, resume: as in the class.
            forward, postprocess (dict): options of these methods.
            **settings: what predictions depend on, in addition to the model and these options.
        """
        found: dict[int, dict] = {}
        total = sum(len(batch.indices) for batch in batches)
        console = Console(stderr=True)
        with ExitStack() as stack:
            add = None
            if progress_file is not None:
                settings = dict(self._settings(), **forward, **postprocess, **settings)
                found, add = stack.enter_context(open_progress(Path(progress_file), settings, resume))
                # A batch is processed as a whole: rounding depends on its composition.
                batches = [batch for batch in batches if not found.keys() >= set(batch.indices)]
            hidden = not (self.show_progress and console.is_terminal)
            progress = stack.enter_context(Progress(console=console, disable=hidden))
            unfinished = sum(len(batch.indices) for batch in batches)
            task = progress.add_task(title, total=total, completed=total - unfinished)
            for batch in batches:
                predictions = self.postprocess(self.forward(batch, **forward), **postprocess)
                new = dict(zip(batch.indices, predictions))
                found.update(new)
                if add is not None:
                    add(new)
                progress.advance(task, len(batch.indices))
        return found

    def _settings(self) -> dict[str, Any]:
        """Return what predictions depend on, in addition to the arguments of a call."""
        weights = sha256()
        for name, x in self.model.state_dict().items():
            weights.update(name.encode())
            weights.update(x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        return dict(
            model=digest(self.cfg.model.to_dict()),
            weights=weights.hexdigest(),
            vocabulary=digest({name: self.meta[name] for name in self.meta_keys}),
        )

    def _load_weights_to_model(self, model: nn.Module, checkpoint: dict | None, cfg: Any) -> None:
        """Load the weights strictly, and the vocabulary."""
        if not isinstance(model, self.model_types):
            names = ' or '.join(each.__name__ for each in self.model_types)
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
                f'included, but vocab_size of the model is {rows}'
            )
        load_weights(model, checkpoint)
        warn_of_differences(self.weights, checkpoint.get('meta') or {}, cfg.model)

    def _read_meta(self) -> None:
        """Set ``vocabulary`` by ``meta``."""
        self.vocabulary = Vocabulary(self.meta['symbols'])

    def _init_pipeline(self, cfg: Any) -> Any:
        """Inputs are prepared by ``preprocess``; a subclass may return a function that it uses."""

    def _init_collate(self, cfg: Any) -> Any:
        """Batches are made by ``preprocess``; no function of the config collates them."""

    def _init_visualizer(self, cfg: Any) -> None:
        """Pictures of attention need no visualizer."""


class SentenceInferencer(LanguageInferencer):
    """Base of the inferencers of models that write sentences by beam search.

    ``forward`` returns the hypotheses for a batch; its options are those of :meth:`_options`. Arguments and errors are
    those of :class:`LanguageInferencer`. Every call has three further arguments:

    * beam (int, optional): number of hypotheses per input. Defaults to that of ``test_cfg`` in the config.
    * length_penalty (float, optional): exponent α of the length penalty; its kind is that of the config. Defaults to
      that of the config.
    * n_best (int): number of sentences per input, at most ``beam``. Defaults to 1.
    """

    def _options(self, beam: int | None, length_penalty: float | None, n_best: int) -> dict[str, Any]:
        """Return the options of the search, checked."""
        given = dict(beam=plain(beam), length_penalty=plain(length_penalty))
        options = {**self.model.test_cfg, **{name: x for name, x in given.items() if x is not None}}
        check_count('beam', options['beam'])
        check_count('n_best', n_best)
        if n_best > options['beam']:
            raise ValueError(f'n_best must be at most beam, {options["beam"]}; got {n_best}')
        LengthPenalty(options['length_penalty'], options['penalty_kind'])
        return options
