"""Encoders of questions (a GRU) and of pictures (a small convolutional network)."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from mmengine.logging import print_log
from torch import Tensor, nn
from torch.nn import functional as F

from mmattn.language.text.vocabulary import PAD
from mmattn.registry import MODELS
from mmattn.utils.checks import check_count, check_counts, check_fraction, check_number
from mmattn.utils.faults import reading

GRU_WEIGHTS = ('encoder_W', 'encoder_Wx', 'encoder_U', 'encoder_Ux', 'encoder_b', 'encoder_bx')


class EncodedQuestion(NamedTuple):
    """A batch of encoded questions.

    Attributes:
        words (Tensor): one vector per word, float ``(B, L, N)``.
        state (Tensor): the vector at the last word, float ``(B, N)``, or 0 for a question without words.
        mask (Tensor): bool ``(B, L)``, True after the last word.
    """

    words: Tensor
    state: Tensor
    mask: Tensor


@MODELS.register_module()
class QuestionGRU(nn.Module):
    """Encode questions by word vectors and a GRU of one layer, all of whose outputs are used.

    The vector of padding is 0, also for unknown words that the data set reads as padding. The GRU also reads the
    padding after the words, as in the published code. Other vectors start as N(0, ``word_std``²), unless
    ``mmattn.WordVectorHook`` fills them from a file.

    Source: "Bilinear Attention Networks", 2018, section 5.

    Args:
        vocab_size (int): number of symbols, with padding.
        word_dim (int): channels of the word vectors: 300 as GloVe, 600 with their mixture. Defaults to 300.
        embed_dim (int): channels N of the GRU. Defaults to 1024.
        word_std (float): standard deviation of the word vectors at the start, above 0. Defaults to 0.4, as GloVe.

    Example:
        >>> encoder = QuestionGRU(vocab_size=100, embed_dim=16)
        >>> question = encoder(torch.tensor([[7, 9, 1], [5, 6, 8]]))
        >>> question.words.shape, question.state.shape
        (torch.Size([2, 3, 16]), torch.Size([2, 16]))
        >>> question.mask
        tensor([[False, False,  True],
                [False, False, False]])
    """

    def __init__(self, vocab_size: int, word_dim: int = 300, embed_dim: int = 1024, word_std: float = 0.4) -> None:
        super().__init__()
        check_counts(vocab_size=vocab_size, word_dim=word_dim, embed_dim=embed_dim)
        check_number('word_std', word_std, 0)
        self.embed_dim = embed_dim
        self.embedding = nn.Embedding(vocab_size, word_dim, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=word_std)
        with torch.no_grad():
            self.embedding.weight[PAD] = 0
        self.gru = nn.GRU(word_dim, embed_dim, batch_first=True)

    def forward(self, question: Tensor) -> EncodedQuestion:
        """Encode questions, int64 ``(B, L)``, padded on the right. A question may be without words."""
        if not question.shape[1]:
            question = F.pad(question, (0, 1), value=PAD)
        positions = torch.arange(1, question.shape[1] + 1, device=question.device)
        count = ((question != PAD) * positions).amax(1, keepdim=True)  # words per question
        words = self.outputs(self.embedding(question))
        last = (count - 1).clamp(min=0).unsqueeze(-1).expand(-1, -1, self.embed_dim)
        state = words.gather(1, last).squeeze(1).masked_fill(count == 0, 0)
        return EncodedQuestion(words, state, positions > count)

    def outputs(self, words: Tensor) -> Tensor:
        """Run the GRU on embedded words ``(B, L, word_dim)``. Returns ``(B, L, N)``."""
        return self.gru(words)[0]


@MODELS.register_module()
class SkipThoughtEncoder(QuestionGRU):
    """Encode questions by the GRU of Skip-Thought vectors, with a dropout mask per gate that all steps share.

    The published weights are three files. ``uni_skip.npz`` is the GRU: set ``pretrained`` to load it when a training
    starts. ``mmattn.WordVectorHook`` loads the word vectors, ``utable.npy`` and ``dictionary.txt``.

    Source: "Attention and Fusion of Deep Representations for Computer Vision", master's thesis, University of Guelph,
    2020, section 1.3, and the published code of MUTAN, which adds the dropout.

    Args:
        vocab_size, word_std: as in :class:`QuestionGRU`.
        word_dim (int): channels of the word vectors. Defaults to 620.
        embed_dim (int): channels N of the GRU. Defaults to 2400.
        dropout (float): dropout probability of words and states, from 0 to 1. Defaults to 0.25.
        pretrained (str, optional): ``uni_skip.npz``. Defaults to None.
        frozen (bool): neither train the vectors and the GRU nor drop anything, as the thesis reads: "extracted" vectors
            as "black boxes" (section 3.3). MUTAN's code trains them. Defaults to False.

    Example:
        >>> encoder = SkipThoughtEncoder(vocab_size=100, word_dim=20, embed_dim=16)
        >>> encoder(torch.tensor([[7, 9, 1], [5, 6, 8]])).state.shape
        torch.Size([2, 16])
    """

    def __init__(
        self,
        vocab_size: int,
        word_dim: int = 620,
        embed_dim: int = 2400,
        dropout: float = 0.25,
        pretrained: str | None = None,
        word_std: float = 0.4,
        frozen: bool = False,
    ) -> None:
        super().__init__(vocab_size, word_dim, embed_dim, word_std)
        check_fraction('dropout', dropout)
        self.dropout, self.pretrained = 0.0 if frozen else dropout, pretrained
        self.requires_grad_(not frozen)

    def init_weights(self) -> None:
        """Load the published GRU, or report that there is none, when a training starts."""
        if self.pretrained is None:
            print_log('Skip-Thought encoder: no pretrained GRU (uni_skip.npz), it is trained from scratch', 'current')
            return
        try:
            self.gru.load_state_dict(read_skip_thought(self.pretrained))
        except RuntimeError as error:
            raise ValueError(f'{self.pretrained}: word_dim or embed_dim of the encoder is another: {error}') from error

    def outputs(self, words: Tensor) -> Tensor:
        """Run the GRU with dropout, as :meth:`QuestionGRU.outputs`."""
        if not self.training or not self.dropout:
            return super().outputs(words)
        count, length, _ = words.shape
        word_mask, state_mask = (
            F.dropout(words.new_ones(3, count, channels), self.dropout)
            for channels in (words.shape[-1], self.embed_dim)
        )
        # One product for the three gates, which read different inputs: (3, B·L, ·) and (3, B, ·).
        w, u, b, c = (x.unflatten(0, (3, -1)) for x in self.gru.parameters())
        masked = (words * word_mask.unsqueeze(2)).flatten(1, 2)
        projected = torch.baddbmm(b.unsqueeze(1), masked, w.mT).unflatten(1, (count, length))
        state, states = projected.new_zeros(count, self.embed_dim), []
        for step in projected.unbind(2):
            r_x, z_x, n_x = step.unbind()
            r_h, z_h, n_h = torch.baddbmm(c.unsqueeze(1), state * state_mask, u.mT).unbind()
            r, z = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
            state = torch.lerp(torch.tanh(n_x + r * n_h), state, z)  # (1 − z)·n + z·h
            states.append(state)
        return torch.stack(states, 1)


def read_skip_thought(path: str | Path) -> dict[str, Tensor]:
    """Read the weights of ``nn.GRU`` from the published ``uni_skip.npz``. A file without them raises a ValueError."""
    expected = f'not the weights of Skip-Thought, with {", ".join(GRU_WEIGHTS)}'
    with reading(path, expected), np.load(path, allow_pickle=False) as file:
        # W, U and b are for the gates r and z, Wx, Ux and bx for n, all transposed
        w, wx, u, ux, b, bx = (torch.from_numpy(file[name]).float() for name in GRU_WEIGHTS)
        weights = dict(
            weight_ih_l0=torch.cat([w, wx], 1).T.contiguous(),
            weight_hh_l0=torch.cat([u, ux], 1).T.contiguous(),
            bias_ih_l0=torch.cat([b, bx]),
            bias_hh_l0=b.new_zeros(len(b) + len(bx)),
        )
        if invalid := [name for name, x in weights.items() if not x.isfinite().all()]:
            raise ValueError(f'{", ".join(invalid)} with NaN or infinite numbers')
    return weights


@MODELS.register_module()
class ConvImageEncoder(nn.Module):
    """Encode pictures by convolutions of stride 2 with batch norm and ReLU. The last map's positions are the regions.

    For simple pictures without pretraining, such as Easy-VQA: 64×64 pixels give 4×4 positions of 128 channels.

    Args:
        channels (sequence of int): channels of each convolution. Defaults to (32, 64, 128, 128).

    Example:
        >>> import torch
        >>> ConvImageEncoder()(torch.rand(2, 3, 64, 64)).shape
        torch.Size([2, 16, 128])
    """

    def __init__(self, channels: tuple[int, ...] = (32, 64, 128, 128)) -> None:
        super().__init__()
        if not channels:
            raise ValueError('channels must have one number per convolution; got none')
        for number in channels:
            check_count('channels', number)
        self.embed_dim = channels[-1]
        self.layers = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())
                for before, after in zip((3, *channels), channels)
            )
        )

    def forward(self, image: Tensor) -> Tensor:
        """Encode images ``(B, 3, H, W)`` in [0, 1] as the positions of the last map, ``(B, H' · W', C)``."""
        return self.layers(image).flatten(2).mT
