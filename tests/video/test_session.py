"""Several masks of an object: a session equals sessions that start at each of them."""

import weakref
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.runner import load_checkpoint

from mmattn.registry import MODELS
from mmattn.video import ClipSession, Frame
from mmattn.video import session as sessions
from mmattn.video.session import reference_weights

from .clips import frame, squares
from .test_label_propagation import build

MASKS = [squares(position, 1, 5) for position in range(10)]
FRAMES = [Frame(i, frame(mask, i)) for i, mask in enumerate(MASKS)]
MIDDLE = 5


@pytest.fixture(scope='module', params=['SST', 'LabelPropagation'])
def session(request, small_sst):
    """Make a session. SST sees all frames at once, because what it predicts depends on the parts of a clip."""
    if request.param == 'LabelPropagation':
        return lambda **options: ClipSession(build(top_k=3), max_frames=4, **options)
    model = MODELS.build(Config.fromfile(small_sst.config).model)
    load_checkpoint(model, str(small_sst.checkpoint), strict=True)
    return lambda **options: ClipSession(model.eval(), **options)


def follow(session, frames, *references):
    for reference in references:
        session.add(reference)
    return {frame.number: ids for frame, ids in session.segment(frames)}


def given(number, *ids):
    return FRAMES[number]._replace(mask=np.where(np.isin(MASKS[number], ids), MASKS[number], 0))


def test_a_corrected_object_is_that_of_a_session_started_there(session):
    """Before its second mask, it is as without it. An object whose mask is not repeated goes on."""
    first, middle, later = given(0, 1, 5), given(MIDDLE, 1, 5), FRAMES[MIDDLE + 1 :]
    found = follow(session(), [first, *FRAMES[1:MIDDLE], middle, *later])
    uncorrected = follow(session(), [first, *FRAMES[1:]])
    started = follow(session(), [middle, *later])
    assert (uncorrected[MIDDLE] != found[MIDDLE]).any()
    for number, ids in found.items():
        np.testing.assert_array_equal(ids, (uncorrected if number < MIDDLE else started)[number])
    both = follow(session(), [first, *FRAMES[1:MIDDLE], given(MIDDLE, 1), *later])
    np.testing.assert_array_equal(both[MIDDLE] == 1, MASKS[MIDDLE] == 1)
    free = MASKS[MIDDLE] != 1
    np.testing.assert_array_equal(
        both[MIDDLE][free] == 5, follow(session(), [given(0, 5), *FRAMES[1:]])[MIDDLE][free] == 5
    )


def test_both_directions_are_two_sessions(session):
    middle = given(MIDDLE, 1, 5)
    found = follow(session(references='nearest'), FRAMES, middle)
    onwards = follow(session(), [middle, *FRAMES[MIDDLE + 1 :]])
    reverse = [x._replace(number=MIDDLE - x.number) for x in (middle, *FRAMES[MIDDLE - 1 :: -1])]
    backwards = {MIDDLE - number: ids for number, ids in follow(session(), reverse).items()}
    assert found.keys() == onwards.keys() | backwards.keys()
    for number, ids in {**onwards, **backwards}.items():
        np.testing.assert_array_equal(ids, found[number])


class Elsewhere(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    device = torch.device('cuda')


def test_labels_on_a_gpu_are_those_on_a_cpu(session, monkeypatch):
    expected = follow(session(), [given(0, 1, 5), *FRAMES[1:4]])
    aggregate = sessions.aggregate
    monkeypatch.setattr(sessions, 'aggregate', lambda *arguments: aggregate(*arguments).as_subclass(Elsewhere))
    found = follow(session(), [given(0, 1, 5), *FRAMES[1:4]])
    assert {0, 5} <= {*np.unique(found[3])}
    for number, ids in expected.items():
        assert found[number].dtype == ids.dtype
        np.testing.assert_array_equal(found[number], ids)


@torch.no_grad()
def test_all_masks_together_are_the_weighted_mean_of_their_probabilities():
    model = build(top_k=3)
    references = [given(0, 1), given(9, 1)]
    found = follow(ClipSession(model, references='all'), FRAMES, *references)
    probabilities = []
    for reference in references:
        session = ClipSession(model)
        session.add(reference)
        (kept,) = session._references.values()
        others = torch.stack([session._features([x])[0][0] for x in FRAMES])
        streams = session._follow(kept, [1], [abs(x.number - reference.number) for x in FRAMES], others)
        logits = model.head(streams[0], None, (32, 48))[:, :, :30, :44]
        probabilities.append(logits.softmax(1)[:, 1])
    for number in range(1, 9):
        mean = (9 - number) / 9 * probabilities[0][number] + number / 9 * probabilities[1][number]
        sure = (mean - 0.5).abs() > 1e-4
        np.testing.assert_array_equal(found[number][sure] == 1, (mean > 0.5)[sure])


class Image(np.ndarray):
    """Pixels whose copies are counted."""

    copies: ClassVar = []

    def __array_finalize__(self, other):
        Image.copies.append(weakref.ref(self))


@pytest.mark.parametrize('sampling', ['stream', 'dense', 'sparse'])
def test_no_more_frames_are_held_than_those_of_a_part(sampling):
    """When a frame is read, those of the part before are gone."""
    Image.copies.clear()
    most = []

    def read(positions):
        for number in positions:
            copies = [copy() for copy in Image.copies]
            most.append(len({id(x) for x in copies if x is not None and x.base is None}))
            del copies
            yield FRAMES[number].image.copy().view(Image).copy()

    model, given = build(top_k=3), {0: torch.from_numpy(MASKS[0])}

    class Frames(list):  # as those of a packed sample
        read = lambda self, positions: read(positions)  # noqa: E731

    sample = SimpleNamespace(frames=Frames(range(10)), frame_numbers=range(10), given=given, ori_shape=MASKS[0].shape)
    if sampling == 'stream':
        frames = (Frame(i, image, None if i else MASKS[0]) for i, image in enumerate(read(range(10))))
        assert len([ids for _, ids in ClipSession(model, max_frames=4).segment(frames)]) == 10
    else:
        ClipSession(model, max_frames=4, sampling=sampling).segment_clip(sample)
    assert max(most) == 4


@pytest.mark.parametrize('references', ['last', 'nearest', 'all'])
def test_masks_that_count_in_no_later_frame_are_not_kept(references):
    """Object 5 has only its first mask. Masks of the future stay, and all that the caller added, for another pass."""
    given_masks = {0: given(0, 1, 5), **{number: given(number, 1) for number in (1, 2, 4, 6, 7)}}
    model, held = build(top_k=3, radius=3), []
    session = ClipSession(model, max_frames=3, references=references)
    session.add(given_masks[7])
    found = []
    for _, ids in session.segment(given_masks.get(x.number, x) if x.number < 7 else x for x in FRAMES):
        found.append(ids)
        held.append(sorted(session._references))
    added = ClipSession(model, max_frames=3, references=references)
    whole = follow(added, FRAMES, *given_masks.values())
    if references == 'last':
        np.testing.assert_array_equal(found, [*whole.values()])
        assert held[4] == [0, 2, 4, 7]  # in parts of two frames
        assert held[-1] == [0, 7]
    else:
        assert held[-1] == [*given_masks]
    np.testing.assert_array_equal([*follow(added, FRAMES).values()], [*whole.values()])


def test_a_cell_of_a_mask_has_the_share_of_its_pixels():
    """Of a frame that is halved; masks without a pattern, and a cell of each object alone."""
    mask = np.random.default_rng(0).choice(np.uint8([0, 1, 5]), (48, 64))
    mask[:8, 8:16], mask[40:, :8] = 1, 5
    session = ClipSession(build(), scale=(32, 24))
    session.add(Frame(0, frame(mask, 0), mask))
    (kept,) = session._references.values()
    h, w = kept.masks.shape[1:]
    assert (h, w) == (6, 8)
    cells = torch.from_numpy(np.stack([mask == 1, mask == 5])).float().unflatten(1, (h, -1)).unflatten(3, (w, -1))
    torch.testing.assert_close(kept.masks, cells.mean((2, 4)))


def test_a_second_mask_of_a_frame_replaces_the_first(session):
    corrected, plain = (follow(session(), FRAMES, *masks) for masks in ([given(0, 5), given(0, 1)], [given(0, 1)]))
    np.testing.assert_array_equal([*corrected.values()], [*plain.values()])


@pytest.mark.parametrize(
    ('references', 'number', 'weights'),
    [
        ('last', 3, {}),
        ('last', 5, {}),
        ('last', 8, {4: 1}),
        ('last', 30, {20: 1}),
        ('nearest', 0, {4: 1}),
        ('nearest', 12, {4: 1}),  # the earlier one of two
        ('nearest', 13, {20: 1}),
        ('nearest', 20, {}),
        ('all', 8, {4: 0.75, 20: 0.25}),
        ('all', 0, {4: 5 / 6, 20: 1 / 6}),
    ],
)
def test_weights_of_masks(references, number, weights):
    masks = [5, 20] if number == 5 else [4, 20]
    assert reference_weights(masks, number, references) == pytest.approx(weights)
