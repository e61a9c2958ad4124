"""Grounding of one caption by the command line, and pictures of phrases: boxes, numbers, colours and true boxes."""

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

from ..files import names, read_json, write_json
from ..world import PHRASES, SIZE

TOOL = Path(__file__).parents[3] / 'tools/grounding_demo.py'
TWO, BOXES = [('a man', 0.5), ('a $\\red$ bike', 0.25)], [(0, 0, 30, 40), (30, 0, 60, 40)]


def test_boxes_have_their_place_in_a_reduced_picture():
    """The colour of the first box is at its sides, and of no other in the picture."""
    drawn = draw_phrases(TWO, BOXES, SIZE, np.full((20, 30, 3), 128, np.uint8), caption='A man rides.')
    first = np.abs(drawn.astype(int) - (0xD4, 0, 0x2A)).sum(-1) < 30
    panel = (np.abs(drawn.astype(int) - 128).sum(-1) < 10).any(0)
    left, right = np.flatnonzero(panel)[[0, -1]]
    columns = np.flatnonzero(first.sum(0) > 100)
    assert min(columns) < left + 12
    assert abs(max(columns) - (left + right) / 2) < 12


def test_each_phrase_has_a_box():
    with pytest.raises(ValueError, match='boxes'):
        draw_phrases(TWO, BOXES[:1], SIZE)


def test_phrases_are_listed_with_the_numbers_and_colours_of_their_boxes(drawn_panels, monkeypatch):
    written = []
    monkeypatch.setattr(phrase_pictures, 'text', lambda *args, **more: written.append(args) or text(*args, **more))
    draw_phrases(TWO, BOXES, SIZE, None, 'A man rides.', [[], [(0, 0, 9, 9), (36, 6, 50, 30)]])
    (heading, *_), (lines, _, colours) = written
    assert heading == 'A man rides.'
    assert [line.split(maxsplit=2) for line in lines] == [['1', '0.500', TWO[0][0]], ['2', '0.250', TWO[1][0]]]
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


# The command line, for one caption.


@pytest.fixture
def call(world, run_tool):
    words = [world.grounder.config, world.grounder.checkpoint, '--regions', world.store, '--device', 'cpu']
    return partial(run_tool, TOOL, *words)


@pytest.fixture
def ask(world):
    return GroundingInferencer(world.grounder.config, world.grounder.checkpoint, 'cpu')


def test_one_caption(call, ask, world, tmp_path):
    out, photo = tmp_path / 'out', world.photos / 'COCO_val2014_000000000012.png'
    [expected] = ask(world.store, PHRASES[1:2])['predictions']
    [phrase] = expected['phrases']
    box = ', '.join(f'{x:.0f}' for x in phrase['box'])
    lines = [f'{phrase["score"]:.3f}  zebras: {box}', 'not in the vocabulary: zebras']
    assert call(*PHRASES[1]) == lines
    found = call(*PHRASES[1], '--out', out, '--picture', photo)
    assert found == [*lines, f'1 captions: {out / "phrases.json"}; 1 have unknown words']
    assert read_json(out / 'phrases.json') == [expected]
    assert names(out) == ['phrases.json', 'phrases.png']
    picture = np.asarray(Image.open(photo).convert('RGB'))
    [caption] = ask.captions(world.store, PHRASES[1:2])
    np.testing.assert_array_equal(
        np.asarray(Image.open(out / 'phrases.png')), ask.visualize(caption, expected, picture)
    )
    (tmp_path / 'phrases.json.part').touch()  # that of a run with --captions
    call(*PHRASES[0], '--out', tmp_path)
    assert (tmp_path / 'phrases.json.part').exists()


def test_true_boxes_of_a_prepared_file(call, ask, world, tmp_path):
    caption = parse_caption('[/EN#3/animals This dog] is [/EN#0/notvisual the colour], of [/EN#5/animals the cats]')
    boxes = EntityBoxes(SIZE, {'3': [[1, 2, 30, 20], [40, 2, 50, 9]], '5': [[3, 3, 9, 9]]}, set(), set())
    path, out = tmp_path / 'entities_test.json', tmp_path / 'out'
    write_json(path, prepared([('7', [caption], boxes)]))
    call(*PHRASES[0], '--out', out, '--entities', path)
    [grounded] = ask.captions(world.store, PHRASES[:1])
    [prediction] = ask(world.store, PHRASES[:1])['predictions']
    drawn = ask.visualize(grounded, prediction, None, [boxes.boxes['3'], [], boxes.boxes['5']])
    np.testing.assert_array_equal(np.asarray(Image.open(out / 'phrases.png')), drawn)
    assert not np.array_equal(drawn, ask.visualize(grounded, prediction))
    with pytest.raises(ValueError, match=f"{path}: image 7 .*'the dog the dog'"):
        call(*PHRASES[2], '--out', tmp_path / 'other', '--entities', path)
