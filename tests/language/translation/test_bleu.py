"""BLEU against its definition, counted n-gram by n-gram, and examples."""

import math
import sys
from collections import Counter

import pytest
import sacrebleu
from mmengine.evaluator import Evaluator
from mmengine.structures import BaseDataElement

from mmattn.language import Hypothesis
from mmattn.language.translation import BLEU
from mmattn.language.translation.bleu import split_compounds, tokenized_bleu

CAT = 'the cat sat on the mat', 'the cat sat on a mat'
MAN = 'a man walks', 'a man walks in the park'
META = dict(
    source='en', target='de', lowercase=True, moses={}, symbols=['ein', 'hu@@', 'nd', 'und', '-', 'der', '.', 'mann@@']
)
NUMBERS = {symbol: number for number, symbol in enumerate(['<s>', '<pad>', '</s>', '<unk>', *META['symbols']])}


def ngrams(line, n):
    tokens = line.split()
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))


def literally(hypotheses, references):
    """BLEU-4 of a corpus with one reference: brevity penalty times the geometric mean of four clipped precisions."""
    precisions = []
    for n in range(1, 5):
        pairs = [(ngrams(hypothesis, n), ngrams(reference, n)) for hypothesis, reference in zip(hypotheses, references)]
        matches = sum(min(count, r[ngram]) for h, r in pairs for ngram, count in h.items())
        total = sum(sum(h.values()) for h, _ in pairs)
        if not matches:
            return 0.0
        precisions.append(matches / total)
    lengths = [sum(len(line.split()) for line in lines) for lines in (hypotheses, references)]
    brevity = min(1.0, math.exp(1 - lengths[1] / lengths[0]))
    return 100 * brevity * math.exp(sum(map(math.log, precisions)) / 4)


def test_printed_examples():
    for pairs, expected in (([CAT], 53.7285), ([CAT, MAN], 42.7733)):
        score = tokenized_bleu(*zip(*pairs))
        assert score.score == pytest.approx(expected, abs=5e-5)
        assert literally(*zip(*pairs)) == pytest.approx(score.score, abs=1e-9)
    assert score.bp == pytest.approx(0.716531, abs=5e-7)


@pytest.mark.parametrize('lines', [([], []), (['a'], [])])
def test_no_text_is_an_error(lines):
    with pytest.raises(ValueError, match='hypotheses and references'):
        tokenized_bleu(*lines)


@pytest.mark.parametrize(
    ('line', 'expected'),
    [
        ('Café-Liebhaber a-b-c', 'Café ##AT##-##AT## Liebhaber a ##AT##-##AT## b-c'),
        ('a - b -c d-', 'a - b -c d-'),
        ('ab-cd-ef', 'ab ##AT##-##AT## cd ##AT##-##AT## ef'),
        ('a--b', 'a ##AT##-##AT## -b'),
        ('', ''),
    ],
)
def test_compound_split(line, expected):
    assert split_compounds(line) == expected


def sample(line, text, target, raw=None, others=()):
    """What the model returns for a test sample: the best translation and others."""
    n_best = [
        Hypothesis([NUMBERS[symbol] for symbol in each.split()], -0.5 - i) for i, each in enumerate((text, *others))
    ]
    return BaseDataElement(
        metainfo=dict(line=line),
        target=target,
        raw_target=raw,
        n_best=n_best,
        pred_tokens=n_best[0].tokens,
        pred_score=n_best[0].score,
    )


SAMPLES = [
    sample(1, 'ein hu@@ nd und der mann@@ nd .', 'ein hu@@ nd und der nd .', 'Ein Hund und der nd.', ['ein', '']),
    sample(2, 'der hu@@ nd', 'der hu@@ nd', 'Der Hund'),
    sample(3, 'und <unk> ein', 'und hu@@ nd ein .', 'Und Hund ein.'),
    sample(4, '', 'ein', 'Ein'),
    sample(5, 'ein - hu@@ nd - der', 'ein - hu@@ nd und der', 'ein - Hund und der'),
]
HYPOTHESES = ['ein hund und der mannnd .', 'der hund', 'und <unk> ein', '', 'ein - hund - der']
REFERENCES = ['ein hund und der nd .', 'der hund', 'und hund ein .', 'ein', 'ein - hund und der']
DETOKENIZED = ['ein hund und der mannnd.', 'der hund', 'und <unk> ein', '', 'ein - hund - der']


def evaluate(samples, meta=META, **options):
    evaluator = Evaluator(BLEU(**options))
    evaluator.dataset_meta = meta
    for start in range(0, len(samples), 2):
        evaluator.process(samples[start : start + 2])
    return evaluator.evaluate(len(samples))


def test_both_figures_in_the_order_of_lines(tmp_path):
    """Tokenized: with the segmentation undone. Detokenized: against the published text, without case."""
    raw = [each.raw_target for each in SAMPLES]
    expected = sacrebleu.BLEU(lowercase=True).corpus_score(DETOKENIZED, [raw]).score
    cased = sacrebleu.BLEU().corpus_score(DETOKENIZED, [raw]).score
    assert expected != pytest.approx(cased, abs=1)
    found = evaluate(SAMPLES[::-1], output_dir=str(tmp_path))
    assert found == pytest.approx(dict(BLEU=literally(HYPOTHESES, REFERENCES), sacreBLEU=expected), abs=1e-9)
    assert 0 < found['BLEU'] < 100
    assert evaluate(SAMPLES, dict(META, lowercase=False))['sacreBLEU'] == pytest.approx(cased, abs=1e-9)
    assert (tmp_path / 'translations.txt').read_text(encoding='utf-8').split('\n') == [*DETOKENIZED, '']
    best = [(1, -0.5, HYPOTHESES[0]), (1, -1.5, 'ein'), (1, -2.5, '')]
    best += [(line, -0.5, text) for line, text in enumerate(HYPOTHESES[1:], 2)]
    lines = ''.join(f'{line}\t{score:.6f}\t{text}\n' for line, score, text in best)
    assert (tmp_path / 'n-best.txt').read_text(encoding='utf-8') == lines


def test_a_reference_in_the_other_form_of_unicode_is_the_same():
    meta = dict(META, symbols=['h\u00fcnd@@' if each == 'mann@@' else each for each in META['symbols']])
    text = 'ein mann@@ nd und der .'
    for raw in ('Ein Hu\u0308ndnd und der.', 'Ein H\u00fcndnd und der.'):
        assert evaluate([sample(1, text, text, raw)], meta)['sacreBLEU'] == pytest.approx(100)


def test_without_a_published_reference(tmp_path):
    """Or if it is not requested: one figure, and the translations as they are."""
    samples = [*SAMPLES[:2], sample(3, 'und der .', 'und der .')]
    for options in (dict(samples=samples), dict(samples=SAMPLES, detokenized=False)):
        found = evaluate(**options, output_dir=str(tmp_path))
        assert list(found) == ['BLEU']
        lines = (tmp_path / 'translations.txt').read_text(encoding='utf-8').split('\n')
        assert lines[0] == HYPOTHESES[0]
        assert len(lines) == len(options['samples']) + 1


@pytest.mark.parametrize(
    ('target', 'lines', 'tokenize'),
    [
        ('zh', ['我喜欢机器翻译。', '今天天气很好，我们去公园。'], 'zh'),
        ('yue', ['佢話：我唔知喎！', '你食咗飯未呀？未，佢答。'], 'zh'),
        ('en', ['これはテストです。', 'あしたはいいてんきです。'], 'char'),  # whatever the text is called
        ('de', ['Das ist ein Test.', 'Morgen wird es schön 好.'], '13a'),
    ],
)
def test_text_without_spaces_is_divided_by_sacrebleu(target, lines, tokenize):
    """A translation that differs in one character has a figure, and the perfect one has 100."""
    symbols = [*lines, lines[0].replace(lines[0][3], 'x')]

    def scores(numbers):
        metric = BLEU()
        metric.dataset_meta = dict(target=target, lowercase=False, moses=dict(joins=True), symbols=symbols)
        for i, number in enumerate(numbers):
            metric.process({}, [dict(line=i, pred_tokens=[4 + number], target=lines[i], raw_target=lines[i])])
        return metric.evaluate(2)

    assert scores([0, 1]) == dict(BLEU=pytest.approx(100), sacreBLEU=pytest.approx(100))
    expected = sacrebleu.corpus_bleu([symbols[2], lines[1]], [lines], tokenize=tokenize).score
    assert scores([2, 1])['sacreBLEU'] == pytest.approx(expected)
    assert 20 < expected < 100


def test_marks_of_joins_do_not_count():
    meta = dict(META, moses=dict(joins=True), symbols=['ein', '\u00a0!', '￭!', 'und', 'der', 'hund'])
    target = 'ein hund und der ￭!'
    sample = dict(line=1, pred_tokens=[4, 9, 7, 8, 5], target=target, raw_target='ein hund und der!')
    found = evaluate([BaseDataElement(**sample)], meta)
    assert found['BLEU'] == pytest.approx(100)


def test_compounds_are_split_on_both_sides_of_the_tokenized_figure():
    meta = dict(META, symbols=['a-b', 'c', 'd-e-f', 'x-b', 'g'])
    targets = ['a-b c d-e-f g', 'c c g']

    def of(numbers, line):
        return BaseDataElement(line=line, pred_tokens=numbers, target=targets[line - 1], raw_target=targets[line - 1])

    samples = [of([7, 5, 6, 8], 1), of([5, 5, 8], 2)]
    hypotheses = ['x-b c d-e-f g', 'c c g']
    plain, split = (evaluate(samples, meta, compound_split=value) for value in (False, True))
    assert plain['BLEU'] == pytest.approx(literally(hypotheses, targets), abs=1e-9)
    expected = literally(*([split_compounds(line) for line in lines] for lines in (hypotheses, targets)))
    assert split['BLEU'] == pytest.approx(expected, abs=1e-9)
    assert split['BLEU'] > plain['BLEU'] + 1
    assert split['sacreBLEU'] == plain['sacreBLEU']


def test_unknown_words_match_no_reference():
    """Not even one in which ``<unk>`` is a word."""
    target = 'ein <unk> hu@@ nd und der <unk>'
    samples = [sample(1, target, target)]
    unmatched = literally(['ein <unk> hund und der <unk>'], ['ein x hund und der x'])
    assert evaluate(samples)['BLEU'] == pytest.approx(unmatched, abs=1e-9) == 0
    samples.append(sample(2, 'ein hu@@ nd und der', 'ein hu@@ nd und der'))
    expected = literally(['ein <unk> hund und der <unk>', 'a b c d'], ['ein x hund und der x', 'a b c d'])
    assert evaluate(samples)['BLEU'] == pytest.approx(expected, abs=1e-9)
    assert 0 < expected < 100


def test_without_sacrebleu(monkeypatch):
    """Before a model is trained."""
    monkeypatch.setitem(sys.modules, 'sacrebleu', None)
    with pytest.raises(ImportError, match=r"sacrebleu is not installed: pip install 'mmattn\[language\]'"):
        BLEU()
