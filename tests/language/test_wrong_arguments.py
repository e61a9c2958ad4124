"""Arguments that make no sense: each is an error that names the argument and what came."""

from functools import partial

import pytest
from torch import nn

from common.region_extractors import GridExtractor, RegionExtractor
from mmattn.language import (
    InverseRootLR,
    LengthPenalty,
    SequenceEncoder,
    TokenBatchSampler,
    TokenEmbedding,
    beam_search,
    captioning,
    grounding,
    layers,
    vqa,
)
from mmattn.language.layers.fusion import PostFusionNetwork
from mmattn.language.translation import TranslationTransformer
from mmattn.language.vqa.attention_hooks import BilinearMapHook

COUNT, PROBABILITY, CHOICE = (0, 2.0), (-0.1, 1.1, True), ('other',)
DIMS = dict.fromkeys(('query_dim', 'value_dim', 'out_dim'), COUNT)
THREE = dict.fromkeys(('word_dim', 'region_dim', 'embed_dim'), COUNT)
FUSED = dict(query_dim=4, value_dim=4, out_dim=4)
JOINT = dict(word_dim=4, region_dim=4)
SIZES = dict(embed_dim=8, num_heads=2, feedforward_dim=8, num_layers=1)
GRU = dict(type='mmattn.QuestionGRU', word_dim=4, embed_dim=4)
UNITARY = dict(type='mmattn.UnitaryHead', embed_dim=4)
POST = partial(PostFusionNetwork, channels=4, activation=nn.Identity())
SAN = partial(captioning.SANCaptioner, vocab_size=9, num_features=4, **SIZES)
TINY = partial(TranslationTransformer, vocab_size=9, size='tiny')


def searching(build, **test_cfg):
    return build(test_cfg=test_cfg)


# What is built, and for each argument what is wrong.
WRONG = [
    (POST, dict(channels=COUNT, hidden_dim=COUNT, num_blocks=COUNT, skip=CHOICE, dropout=PROBABILITY)),
    (partial(layers.HadamardFusion, **FUSED), DIMS | dict(num_branches=COUNT, chunk_size=COUNT)),
    (partial(layers.ConcatFusion, **FUSED), DIMS),
    (partial(layers.MCBFusion, **FUSED), DIMS | dict(sketch_dim=COUNT, seed=(-1, 2.0))),
    (layers.ObjectCounter, dict(num_objects=COUNT, num_pieces=COUNT, skip=(-1, 2.0))),
    (
        partial(layers.BilinearLogits, **JOINT, embed_dim=4),
        THREE | dict(num_glimpses=COUNT, dropout=PROBABILITY, region_dropout=PROBABILITY),
    ),
    (
        partial(layers.ConcatLogits, **JOINT, embed_dim=4),
        THREE | dict(dropout=PROBABILITY, hidden_dropout=PROBABILITY),
    ),
    (
        partial(layers.BilinearAttentionNetwork, **JOINT),
        THREE | dict(num_glimpses=COUNT, logit_factor=COUNT, pool_factor=COUNT, mode=CHOICE),
    ),
    (
        partial(layers.UnitaryAttention, query_dim=4, region_dim=4),
        dict(query_dim=COUNT, region_dim=COUNT, embed_dim=COUNT, dropout=PROBABILITY),
    ),
    (partial(layers.CoAttention, **JOINT), THREE | dict(hidden_dim=COUNT, dropout=PROBABILITY)),
    (partial(layers.BilateralMultiheadAttention, embed_dim=8, num_heads=2), dict(dropout=PROBABILITY)),
    (
        partial(TokenEmbedding, vocab_size=9, embed_dim=8),
        dict(vocab_size=COUNT, embed_dim=(*COUNT, 3), positions=CHOICE),
    ),
    (partial(SequenceEncoder, layer=dict(embed_dim=8, num_heads=2, feedforward_dim=8)), dict(num_layers=COUNT)),
    (
        partial(grounding.PhraseGrounder, vocab_size=9, question_encoder=GRU, num_features=4, embed_dim=8),
        dict(vocab_size=COUNT, num_features=COUNT, embed_dim=COUNT, reads=CHOICE),
    ),
    (SAN, dict(num_features=COUNT, positions=CHOICE, stack=CHOICE, label_smoothing=PROBABILITY)),
    (partial(captioning.ETACaptioner, vocab_size=9, num_features=4, **SIZES), dict(num_features=COUNT, sources=CHOICE)),
    (partial(searching, SAN), dict(max_length=COUNT, beam=COUNT)),
    (TINY, dict(size=CHOICE, stack=CHOICE, label_smoothing=PROBABILITY)),
    (partial(searching, TINY), dict(max_length=(0, 2.0, True, 'x', [1, 'x'], [True, 5], [1, 2, 3], (0.5, 0), (0, -3)))),
    (
        partial(vqa.QuestionGRU, vocab_size=9, word_dim=4, embed_dim=4),
        dict(vocab_size=COUNT, word_dim=COUNT, embed_dim=COUNT, word_std=(-1, True)),
    ),
    (partial(vqa.SkipThoughtEncoder, vocab_size=9, word_dim=4, embed_dim=4), dict(dropout=PROBABILITY)),
    (vqa.ConvImageEncoder, dict(channels=((8, 0), (2.0, 8)))),
    (
        partial(vqa.MCAN, vocab_size=9, num_features=4, **SIZES),
        dict.fromkeys(('vocab_size', 'num_answers', 'num_features', 'word_dim', 'fused_dim'), COUNT)
        | dict(dropout=PROBABILITY),
    ),
    (
        partial(vqa.VQAModel, vocab_size=9, num_answers=5, question_encoder=GRU, head=UNITARY, num_features=4),
        dict(num_answers=COUNT, num_features=COUNT, loss=CHOICE),
    ),
    (
        partial(vqa.FusionHead, question_dim=4, region_dim=4, num_answers=5),
        DIMS | dict(pooled_dim=COUNT, num_glimpses=(*COUNT, 7), dropout=PROBABILITY, activation=CHOICE),
    ),
    (BilinearMapHook, dict(num_questions=COUNT, interval=COUNT, top_k=COUNT)),
    (
        partial(RegionExtractor, None, None),
        dict(min_regions=(-1, 2.0), max_regions=(0, 9, 20.0), score_thr=PROBABILITY),
    ),
    (partial(GridExtractor, None, None), dict(size=COUNT, grid=COUNT)),
    (LengthPenalty, dict(alpha=(-10.5, 10.5, True), kind=CHOICE)),
    (partial(beam_search, None, None, 1, max_length=3), dict(beam=COUNT)),
    (partial(InverseRootLR, None, by_epoch=False), dict(warmup=COUNT)),
    (partial(TokenBatchSampler, None, batch_size=5, max_tokens=50), dict(batch_size=COUNT, max_tokens=COUNT)),
]


@pytest.mark.parametrize(
    ('build', 'name', 'value'),
    [
        pytest.param(build, name, value, id=f'{getattr(build, "func", build).__name__}-{name}-{value!r}')
        for build, arguments in WRONG
        for name, values in arguments.items()
        for value in values
    ],
)
def test_the_error_names_the_argument(build, name, value):
    with pytest.raises((TypeError, ValueError)) as caught:
        build(**{name: value})
    assert name in str(caught.value)
    assert any(repr(x) in str(caught.value) for x in (value, *(value if isinstance(value, tuple | list) else ())))
