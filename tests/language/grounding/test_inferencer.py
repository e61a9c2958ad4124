"""Grounding of captions by a region store, from Python and by the command line: values, pictures, stops, errors."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmattn.language.grounding import phrase_pictures
from mmattn.language.grounding.entities import EntityBoxes, parse_caption, prepared
from mmattn.language.grounding.inferencer import GroundingInferencer
from mmattn.language.grounding.phrase_pictures import closest_box, draw_phrases
from mmattn.visualization.panels import BOX_COLOURS, text

from ...contracts.inferencers import Phrases
from ..files import read_json, write_json
from ..vqa.asking import SIZE, write_model, write_pictures, write_store

TOOL = Path(__file__).parents[3] / 'tools/grounding_demo.py'
CAPTIONS = Phrases.items
# By hand: the numbers of the words, the unknown ones as padding, and the place of the last word of each phrase.


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp('grounding')
    write_store(folder / 'regions')
    write_pictures(folder / 'pictures', size=(30, 20))
    return folder


@pytest.fixture(scope='module')
def trained(folder):
    return write_model(folder, 'grounder', Phrases.model_config)


def make(trained, **options):
    return GroundingInferencer(trained.config, trained.checkpoint, 'cpu', **options)


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


def test_each_phrase_has_a_box():
    with pytest.raises(ValueError, match='boxes'):
        draw_phrases([('a man', 0.5), ('a bike', 0.25)], [(0, 0, 30, 40)], SIZE)


def test_phrases_are_listed_with_the_numbers_and_colours_of_their_boxes(drawn_panels, monkeypatch):
    written = []
    monkeypatch.setattr(
        phrase_pictures, 'text', lambda *args, **options: written.append(args) or text(*args, **options)
    )
    phrases, boxes = [('a man', 0.5), ('a bike', 0.25)], [(0, 0, 30, 40), (30, 0, 60, 40)]
    draw_phrases(phrases, boxes, SIZE, None, 'A man rides.', [[], [(0, 0, 9, 9), (36, 6, 50, 30)]])
    (heading, *_), (lines, _, colours) = written
    assert heading == 'A man rides.'
    assert [line.split(maxsplit=2) for line in lines] == [['1', '0.500', 'a man'], ['2', '0.250', 'a bike']]
    assert colours == BOX_COLOURS
    _, shown, _ = (panel.picture for panel in drawn_panels)
    scale = 550 / SIZE[0]
    second = (shown == (0, 0x75, 0x2F)).all(-1)  # the colour of the second phrase
    assert second[150, 548]  # its right side; the first box is over its left one
    inside = second[40:-10, int(31 * scale) : int(59 * scale)]  # the closest true box, dashed
    across = np.flatnonzero(inside.any(0)) + int(31 * scale)
    np.testing.assert_allclose(across[[0, -1]], [36 * scale, 50 * scale], atol=3)
    assert 0.3 < inside[:, across[0] - int(31 * scale)][20:200].mean() < 0.7


def test_the_closest_true_box_is_chosen():
    box, far, near, overlapping = (0, 0, 30, 40), (40, 0, 60, 40), (34, 4, 52, 36), (5, 0, 30, 40)
    assert closest_box(box, [far, near]) == near
    assert closest_box(box, [far, near, overlapping, (0, 0, 5, 5)]) == overlapping


# The command line.


@pytest.fixture
def words(trained, folder):
    return [TOOL, trained.config, trained.checkpoint, '--regions', folder / 'regions', '--device', 'cpu']


@pytest.fixture
def call(run_tool, words):
    """``call(*arguments)`` runs the tool in this process, and returns the lines that it prints."""
    return partial(run_tool, *words)


def test_one_caption(call, folder, trained, tmp_path):
    out = tmp_path / 'out'
    [expected] = make(trained)(folder / 'regions', CAPTIONS[1:2])['predictions']
    [phrase] = expected['phrases']
    box = ', '.join(f'{x:.0f}' for x in phrase['box'])
    lines = [f'{phrase["score"]:.3f}  zebras: {box}', 'not in the vocabulary: zebras']
    assert call(*CAPTIONS[1]) == lines
    found = call(*CAPTIONS[1], '--out', out, '--picture', folder / 'pictures/12.png')
    assert found == [*lines, f'1 captions: {out / "phrases.json"}; 1 have unknown words']
    assert read_json(out / 'phrases.json') == [expected]
    assert sorted(path.name for path in out.iterdir()) == ['phrases.json', 'phrases.png']
    inferencer = make(trained)
    picture = np.asarray(Image.open(folder / 'pictures/12.png').convert('RGB'))
    [caption] = inferencer.captions(folder / 'regions', CAPTIONS[1:2])
    drawn = inferencer.visualize(caption, expected, picture)
    assert np.array_equal(np.asarray(Image.open(out / 'phrases.png')), drawn)
    with pytest.raises(FileExistsError, match='--overwrite'):
        call(*CAPTIONS[0], '--out', out)
    (tmp_path / 'phrases.json.part').touch()  # that of a run with --captions
    call(*CAPTIONS[0], '--out', tmp_path)
    assert (tmp_path / 'phrases.json.part').exists()


def test_true_boxes_of_a_prepared_file(call, folder, trained, tmp_path):
    caption = parse_caption('[/EN#3/animals This dog] is [/EN#0/notvisual the colour], of [/EN#5/animals the cats]')
    boxes = EntityBoxes(SIZE, {'3': [[1, 2, 30, 20], [40, 2, 50, 9]], '5': [[3, 3, 9, 9]]}, set(), set())
    path, out = tmp_path / 'entities_test.json', tmp_path / 'out'
    write_json(path, prepared([('7', [caption], boxes)]))
    call(*CAPTIONS[0], '--out', out, '--entities', path)
    inferencer = make(trained)
    [grounded] = inferencer.captions(folder / 'regions', CAPTIONS[:1])
    [prediction] = inferencer(folder / 'regions', CAPTIONS[:1])['predictions']
    true_boxes = [boxes.boxes['3'], [], boxes.boxes['5']]
    drawn = inferencer.visualize(grounded, prediction, None, true_boxes)
    assert np.array_equal(np.asarray(Image.open(out / 'phrases.png')), drawn)
    assert not np.array_equal(drawn, inferencer.visualize(grounded, prediction))
    with pytest.raises(ValueError, match=f"{path}: image 7 .*'the dog the dog'"):
        call(*CAPTIONS[2], '--out', tmp_path / 'other', '--entities', path)


def test_a_file_of_captions(call, folder, trained, tmp_path):
    path, out = tmp_path / 'captions.txt', tmp_path / 'out'
    path.write_text(''.join(f'{image}\t{text}\n' for image, text in CAPTIONS), encoding='utf-8')
    found = call('--captions', path, '--out', out, '--top-k', 2)
    assert found == [f'4 captions: {out / "phrases.json"}; 2 have unknown words']
    assert read_json(out / 'phrases.json') == make(trained)(folder / 'regions', CAPTIONS, 2)['predictions']
    assert [path.name for path in out.iterdir()] == ['phrases.json']


@pytest.mark.parametrize(
    ('arguments', 'names'),
    [
        (['7'], '--captions'),
        (['7', '[a]', '--captions', 'a.txt'], '--captions'),
        (['--captions', 'a.txt'], '--out'),
        (['--captions', 'a.txt', '--out', 'b', '--picture', 'a.png'], '--picture'),
        (['7', '[a]', '--resume'], '--captions'),
        (['7', '[a]', '--picture', 'a.png'], '--picture'),
        (['7', '[a]', '--entities', 'a.json'], '--entities'),
        (['7', '[a]', '--out', 'out', '--picture', 'none.png'], 'none.png'),
        (['7', '[a]', '--out', 'out', '--picture', 'faulty.txt'], 'faulty.txt'),
        (['99', '[a dog]'], 'image 99'),
        (['--captions', 'faulty.txt', '--out', 'new'], 'faulty.txt: .*\n.*line 1: .*\n.*line 2: '),
        (['--captions', 'out/phrases.json.part', '--out', 'out', '--overwrite'], 'phrases.json.part'),
    ],
)
def test_failures_of_the_command_line(refuse, words, tmp_path, monkeypatch, arguments, names):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'out').mkdir()
    for name in ('faulty.txt', 'out/phrases.json.part'):
        (tmp_path / name).write_text('7 [a dog]\n\t[a]\n7\t[a]\n', encoding='utf-8')
    refuse(names, *words, *arguments)
