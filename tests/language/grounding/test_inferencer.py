"""Grounding of captions by a region store, from Python and by the command line: values, pictures, stops, errors."""

import json
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mmattn.language.grounding.entities import EntityBoxes, parse_caption, prepared
from mmattn.language.grounding.inferencer import GroundingInferencer
from mmattn.language.grounding.phrase_pictures import closest_box, draw_phrases
from mmattn.language.regions.region_store import RegionStore

from ..interruption import Stop, stop_after
from ..vqa.asking import BAN, FEATURES, SIZE, WORDS, spoil, write_model, write_pictures, write_store

TOOL = Path(__file__).parents[3] / 'tools/grounding_demo.py'
GROUNDER = dict(
    type='mmattn.PhraseGrounder',
    vocab_size=4 + len(WORDS),
    num_features=FEATURES,
    embed_dim=12,
    question_encoder=dict(type='mmattn.QuestionGRU', word_dim=8),
)
CAPTIONS = [
    ('7', '[This dog] is [the colour], of [the cats]'),
    ('12', 'how many [zebras?]'),
    ('7', '[the dog], the [dog]'),
    ('40', "[the dog's colour] of the dog"),
]
# By hand: the numbers of the words, the unknown ones as padding, and the place of the last word of each phrase.
TOKENS = [[6, 7, 5, 8, 9, 10, 8, 13], [11, 12, 1], [8, 7, 8, 7], [8, 7, 1, 9, 10, 8, 7]]
LAST = [[1, 4, 7], [2], [1, 3], [3]]
PHRASES = [['this dog', 'the colour', 'the cats'], ['zebras'], ['the dog', 'dog'], ["the dog 's colour"]]
UNKNOWN = [[], ['zebras'], [], ["'s"]]


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp('grounding')
    write_store(folder / 'regions')
    write_pictures(folder / 'pictures', size=(30, 20))
    return folder


@pytest.fixture(scope='module')
def trained(folder):
    return write_model(folder, 'grounder', GROUNDER)


def make(trained, **options):
    return GroundingInferencer(trained.config, trained.checkpoint, 'cpu', **options)


def test_predictions_are_those_of_the_model_for_single_captions(folder, trained):
    inferencer = make(trained, batch_size=3)
    store = RegionStore(folder / 'regions')
    found = inferencer(folder / 'regions', CAPTIONS, top_k=np.int64(2))['predictions']
    assert [each['unknown'] for each in found] == UNKNOWN
    for (image, text), prediction, tokens, last, phrases in zip(CAPTIONS, found, TOKENS, LAST, PHRASES, strict=True):
        assert (prediction['image_id'], prediction['caption']) == (image, text)
        assert [each['phrase'] for each in prediction['phrases']] == phrases
        regions = store[image]
        logits = inferencer.model(
            dict(caption=torch.tensor([tokens]), phrases=torch.tensor([last]), features=regions.features[None])
        )[0]
        for each, row in zip(prediction['phrases'], logits.tolist(), strict=True):
            order = sorted(range(len(row)), key=lambda j: -row[j])[:2]
            assert [region['region'] for region in each['regions']] == order
            assert each['box'] == each['regions'][0]['box'] == regions.boxes[order[0]].tolist()
            assert each['score'] == pytest.approx(1 / (1 + np.exp(-row[order[0]])), abs=1e-6)


def test_a_stopped_run_continues_with_the_batches_that_are_missing(folder, trained, tmp_path, monkeypatch):
    expected = make(trained, batch_size=1)(folder / 'regions', CAPTIONS)
    path = tmp_path / 'phrases.json.part'
    inferencer = make(trained, batch_size=1)
    ran = stop_after(inferencer, 2, monkeypatch)
    with pytest.raises(Stop):
        inferencer(folder / 'regions', CAPTIONS, progress_file=path)
    assert ran == [[0], [1]]
    inferencer = make(trained, batch_size=1)
    ran = stop_after(inferencer, 4, monkeypatch)
    assert inferencer(folder / 'regions', CAPTIONS, progress_file=path) == expected
    assert ran == [[2], [3]]


def test_errors_before_the_model_runs(folder, trained, monkeypatch):
    inferencer = make(trained)
    monkeypatch.setattr(inferencer, 'forward', None)
    regions = folder / 'regions'
    with pytest.raises(ValueError, match='captions: 3 faults') as error:
        inferencer(regions, [('7', 'no phrase'), ('7', '[a] b]'), ('7', '[,] is'), CAPTIONS[0]])
    assert str(error.value).splitlines()[1:] == [
        "  caption 1, 'no phrase': no phrase in brackets, such as [a man] rides [a red bike]",
        "  caption 2, '[a] b]': a bracket that is not of the form [words] in 'b]'",
        "  caption 3, '[,] is': the phrase '[,]' has no words",
    ]
    for captions, top_k, message in (
        (None, 5, 'captions must be pairs of image id and caption, at least one; got None'),
        ([], 5, 'captions must be pairs'),
        ([('7', 3)], 5, 'captions must be pairs'),
        ([('8', '[a]'), ('9', '[a]')], 5, 'image 9 is not in the store'),
        (CAPTIONS, 0, 'top_k'),
    ):
        with pytest.raises(ValueError, match=message):
            inferencer(regions, captions, top_k)
    write_store(folder / 'wide', width=FEATURES + 1)
    with pytest.raises(ValueError, match='7 features per region, but the model has 6'):
        inferencer(folder / 'wide', CAPTIONS)


def test_only_grounding_models_with_their_vocabulary(folder):
    other = write_model(folder, 'ban', BAN)
    with pytest.raises(ValueError, match=r'the model must be a PhraseGrounder; the config has mmattn\.VQAModel'):
        make(other)
    other = write_model(folder, 'shorter', GROUNDER, symbols=WORDS[:-1])
    with pytest.raises(ValueError, match='its vocabulary has 13 symbols'):
        make(other)


def test_boxes_have_their_place_in_a_reduced_picture():
    """The colour of the first box is at its sides, and of no other in the picture."""
    picture = np.full((20, 30, 3), 128, np.uint8)
    phrases = [('a man', 0.5), ('a $\\red$ bike', 0.25)]
    drawn = draw_phrases(phrases, [(0, 0, 30, 40), (30, 0, 60, 40)], SIZE, picture, caption='A man rides.')
    first = np.abs(drawn.astype(int) - (0xD4, 0, 0x2A)).sum(-1) < 30
    panel = (np.abs(drawn.astype(int) - 128).sum(-1) < 10).any(0)
    left, right = np.flatnonzero(panel)[[0, -1]]
    middle = (left + right) / 2
    columns = np.flatnonzero(first.sum(0) > 100)
    assert len(columns)
    assert min(columns) < left + 12
    assert abs(max(columns) - middle) < 12
    with pytest.raises(ValueError, match='boxes must have one box per phrase, 2; got 1'):
        draw_phrases(phrases, [(0, 0, 30, 40)], SIZE)


def test_the_closest_true_box_is_dashed():
    box, far, near, overlapping = (0, 0, 30, 40), (40, 0, 60, 40), (34, 4, 52, 36), (5, 0, 30, 40)
    assert closest_box(box, [far, near]) == near
    assert closest_box(box, [far, near, overlapping, (0, 0, 5, 5)]) == overlapping
    phrases = [('a man', 0.5), ('a bike', 0.25)]
    boxes = [box, (2, 30, 8, 38)]
    plain, drawn = (
        draw_phrases(phrases, boxes, SIZE, true_boxes=true_boxes).astype(int) for true_boxes in ((), [[far, near], []])
    )
    changed = (plain != drawn).any(-1)
    assert (np.abs(drawn[changed] - (0xD4, 0, 0x2A)).sum(-1) < 30).any()  # the phrase's colour
    columns = np.flatnonzero(changed.any(0))
    rows = np.flatnonzero(changed.any(1))
    for places, sides in ((columns, near[2] - near[0]), (rows, near[3] - near[1])):
        assert places[-1] - places[0] == pytest.approx(sides * 550 / SIZE[0], abs=6)  # five inches of 110 pixels
    side = changed[rows[0] : rows[-1], columns[0] + 1]
    assert 0.3 < side.mean() < 0.95  # gaps


# The command line.


@pytest.fixture
def call(monkeypatch, capsys, trained, folder):
    """``call(*arguments)`` runs the tool in this process, and returns the lines that it prints, without mmengine's."""

    def call(*arguments):
        given = [trained.config, trained.checkpoint, '--regions', folder / 'regions', '--device', 'cpu', *arguments]
        monkeypatch.setattr(sys, 'argv', [str(TOOL), *map(str, given)])
        monkeypatch.syspath_prepend(str(TOOL.parent))
        runpy.run_path(str(TOOL))['main']()
        return [line for line in capsys.readouterr().out.splitlines() if not line.startswith('Loads checkpoint')]

    return call


def read(path):
    return json.loads(path.read_text(encoding='utf-8'))


def test_one_caption(call, folder, trained, tmp_path):
    out = tmp_path / 'out'
    [expected] = make(trained)(folder / 'regions', CAPTIONS[1:2])['predictions']
    [phrase] = expected['phrases']
    box = ', '.join(f'{x:.0f}' for x in phrase['box'])
    lines = [f'{phrase["score"]:.3f}  zebras: {box}', 'not in the vocabulary: zebras']
    assert call(*CAPTIONS[1]) == lines
    found = call(*CAPTIONS[1], '--out', out, '--picture', folder / 'pictures/12.png')
    assert found == [*lines, f'1 captions: {out / "phrases.json"}; 1 have unknown words']
    assert read(out / 'phrases.json') == [expected]
    assert sorted(path.name for path in out.iterdir()) == ['phrases.json', 'phrases.png']
    inferencer = make(trained)
    picture = np.asarray(Image.open(folder / 'pictures/12.png').convert('RGB'))
    [caption] = inferencer.captions(folder / 'regions', CAPTIONS[1:2])
    drawn = inferencer.visualize(caption, expected, picture)
    assert np.array_equal(np.asarray(Image.open(out / 'phrases.png')), drawn)
    with pytest.raises(FileExistsError, match='--overwrite replaces it'):
        call(*CAPTIONS[0], '--out', out)
    (tmp_path / 'phrases.json.part').touch()  # that of a run with --captions
    call(*CAPTIONS[0], '--out', tmp_path)
    assert (tmp_path / 'phrases.json.part').exists()


def test_true_boxes_of_a_prepared_file(call, folder, trained, tmp_path):
    caption = parse_caption('[/EN#3/animals This dog] is [/EN#0/notvisual the colour], of [/EN#5/animals the cats]')
    boxes = EntityBoxes(SIZE, {'3': [[1, 2, 30, 20], [40, 2, 50, 9]], '5': [[3, 3, 9, 9]]}, set(), set())
    path, out = tmp_path / 'entities_test.json', tmp_path / 'out'
    path.write_text(json.dumps(prepared([('7', [caption], boxes)])), encoding='utf-8')
    call(*CAPTIONS[0], '--out', out, '--entities', path)
    inferencer = make(trained)
    [grounded] = inferencer.captions(folder / 'regions', CAPTIONS[:1])
    [prediction] = inferencer(folder / 'regions', CAPTIONS[:1])['predictions']
    true_boxes = [boxes.boxes['3'], [], boxes.boxes['5']]
    drawn = inferencer.visualize(grounded, prediction, None, true_boxes)
    assert np.array_equal(np.asarray(Image.open(out / 'phrases.png')), drawn)
    assert not np.array_equal(drawn, inferencer.visualize(grounded, prediction))
    message = f"{path}: image 7 has no caption 'the dog the dog'"
    with pytest.raises(ValueError, match=f'^{re.escape(message)}$'):
        call(*CAPTIONS[2], '--out', tmp_path / 'other', '--entities', path)


def test_features_that_are_not_finite_are_refused(call, tmp_path):
    """A later --regions is added, so the spoilt store has another image."""
    spoil(write_store(tmp_path / 'spoilt', ['x', 'y']))
    arguments = ['--regions', tmp_path / 'spoilt']
    with pytest.raises(ValueError, match=r'image y of the region store .*spoilt: .*NaN'):
        call(*arguments, 'y', '[a dog]')
    path = tmp_path / 'captions.txt'
    path.write_text('x\t[a dog]\ny\t[a dog]\n', encoding='utf-8')
    with pytest.raises(ValueError, match=r'image y of the region store .*spoilt: .*NaN'):
        call(*arguments, '--captions', path, '--out', tmp_path / 'out')
    assert call(*arguments, 'x', '[a dog]')


def test_a_file_of_captions(call, folder, trained, tmp_path):
    path, out = tmp_path / 'captions.txt', tmp_path / 'out'
    path.write_text(''.join(f'{image}\t{text}\n' for image, text in CAPTIONS), encoding='utf-8')
    found = call('--captions', path, '--out', out, '--top-k', 2)
    assert found == [f'4 captions: {out / "phrases.json"}; 2 have unknown words']
    assert read(out / 'phrases.json') == make(trained)(folder / 'regions', CAPTIONS, 2)['predictions']
    assert [path.name for path in out.iterdir()] == ['phrases.json']
    part = path.rename(tmp_path / 'phrases.json.part')
    with pytest.raises(ValueError, match=r'--out \S+phrases\.json\.part would replace an input'):
        call('--captions', part, '--out', tmp_path, '--overwrite')
    path.write_text('', encoding='utf-8')
    with pytest.raises(ValueError, match=f'^{re.escape(str(path))}: 1 fault:\n  no caption$'):
        call('--captions', path, '--out', tmp_path / 'other')
    path.write_text('7 [a dog]\n\t[a]\n7\t[a]\n', encoding='utf-8')
    message = (
        f'{path}: 2 faults:\n'
        "  line 1: must be an image id, a tab and a caption; got '7 [a dog]'\n"
        "  line 2: must be an image id, a tab and a caption; got '\\t[a]'"
    )
    with pytest.raises(ValueError, match=f'^{re.escape(message)}$'):
        call('--captions', path, '--out', tmp_path / 'other')


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ((), 'IMAGE and a caption are required, or --captions'),
        (('7',), 'IMAGE and a caption are required, or --captions'),
        (('7', '[a]', '--captions', 'a.txt'), '--captions excludes IMAGE and caption; got 7'),
        (('--captions', 'a.txt'), '--captions requires --out'),
        (
            ('--captions', 'a.txt', '--out', 'b', '--picture', 'a.png'),
            '--picture requires --out, and excludes --captions',
        ),
        (('7', '[a]', '--resume'), '--resume requires --captions'),
        (('7', '[a]', '--picture', 'a.png'), '--picture requires --out, and excludes --captions'),
        (('7', '[a]', '--entities', 'a.json'), '--entities requires --out, and excludes --captions'),
    ],
)
def test_options_that_exclude_each_other(call, arguments, message, capsys):
    with pytest.raises(SystemExit):
        call(*arguments)
    assert capsys.readouterr().err.splitlines()[-1].endswith(message)


def test_unreadable_pictures_and_unknown_images(call, folder, tmp_path):
    with pytest.raises(FileNotFoundError):
        call(*CAPTIONS[0], '--out', tmp_path, '--picture', tmp_path / 'none.png')
    (tmp_path / 'text.png').write_text('text', encoding='utf-8')
    with pytest.raises(ValueError, match=r'text\.png'):
        call(*CAPTIONS[0], '--out', tmp_path, '--picture', tmp_path / 'text.png')
    with pytest.raises(ValueError, match='image 99 is not in the store'):
        call('99', '[a dog]')
