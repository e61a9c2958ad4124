"""Hook that starts a training from published word vectors."""

import torch
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from torch import Tensor, nn

from mmattn._compat import has_loaded
from mmattn.language.text.vocabulary import SPECIALS, UNK
from mmattn.registry import HOOKS

from .word_vectors import read_word_vectors

UNKNOWN = 'UNK'


@HOOKS.register_module()
class WordVectorHook(Hook):
    """Fills the embedding of a model with word vectors from a file, before the first iteration.

    It fills the first ``nn.Embedding`` of the model, that of the question encoder. A word without a vector has 0, as in
    the published code of the bilinear attention network, or the vector of the word 'UNK', if the file has it, as
    Skip-Thought; so has ``<unk>``. The vector of padding stays 0. All vectors are trained further.

    A training that starts from a checkpoint, or is resumed, keeps the vectors of the checkpoint.

    Args:
        file (str): text file of word vectors, such as ``glove.6B.300d.txt``, or ``utable.npy``; see
            :func:`mmattn.language.vqa.read_word_vectors`.
        dictionary (str, optional): the words of an ``.npy`` file. Defaults to None.

    Raises:
        OSError: before the first iteration, if a file cannot be read.
        ValueError: before the first iteration, if the vectors are not as wide as the embedding, the file has none of
            the words, or the model has no embedding of the words of the training data.

    Example:
        >>> from mmattn.registry import HOOKS
        >>> HOOKS.build(dict(type='WordVectorHook', file='glove.6B.300d.txt')).file
        'glove.6B.300d.txt'
        >>> custom_hooks = [dict(type='mmattn.WordVectorHook', file='glove.6B.300d.txt')]  # in a config
    """

    def __init__(self, file: str, dictionary: str | None = None) -> None:
        self.file, self.dictionary = file, dictionary

    def before_train(self, runner: Runner) -> None:
        """Fill the embedding."""
        if has_loaded(runner):
            print_log(f'word vectors: those of the checkpoint are kept, {self.file} is not read', 'current')
            return
        model = runner.model
        while is_model_wrapper(model):
            model = model.module
        symbols = runner.train_dataloader.dataset.metainfo['symbols']
        embedding = next((part for part in model.modules() if isinstance(part, nn.Embedding)), None)
        rows = None if embedding is None else len(embedding.weight)
        if embedding is None or rows != len(SPECIALS) + len(symbols):
            raise ValueError(
                f'{self.file}: WordVectorHook requires a model with an nn.Embedding of '
                f'{len(SPECIALS) + len(symbols):,} rows, the symbols of the training data; got {rows}'
            )
        found = read_word_vectors(self.file, {*symbols, UNKNOWN}, embedding.embedding_dim, self.dictionary)
        absent = found.pop(UNKNOWN, torch.zeros(embedding.embedding_dim))
        known: list[Tensor] = [found[word] for word in symbols if word in found]
        if not known:
            raise ValueError(f'{self.file}: none of the {len(symbols):,} words is in the file')
        with torch.no_grad():
            embedding.weight[UNK] = absent
            embedding.weight[len(SPECIALS) :] = torch.stack([found.get(word, absent) for word in symbols])
        print_log(f'word vectors: {len(known):,} of {len(symbols):,} words are in {self.file}', 'current')
