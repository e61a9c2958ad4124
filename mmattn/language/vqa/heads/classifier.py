"""The classifier of answers that several heads share."""

from torch import nn

from mmattn.language.layers.weight_norm import weight_norm_linear


def answer_classifier(in_dim: int, hidden_dim: int, num_answers: int, dropout: float = 0.5) -> nn.Sequential:
    """Return Lin(dropout(σLin(x))), with weight norm: the logits of the answers.

    Source: "Bilinear Attention Networks", 2018; hidden channels and dropout are those of its published code.

    Args:
        in_dim, hidden_dim (int): channels.
        num_answers (int): number of answers A.
        dropout (float): probability. Defaults to 0.5.

    Example:
        >>> import torch
        >>> answer_classifier(16, 32, 5)(torch.randn(2, 16)).shape
        torch.Size([2, 5])
    """
    return nn.Sequential(
        weight_norm_linear(in_dim, hidden_dim, 0.0), weight_norm_linear(hidden_dim, num_answers, dropout, relu=False)
    )
