"""Masks and overlays of whole clips, against the model; runs that break and go on; and what must be an error."""

import logging
import re
import resource
import sys

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from PIL import Image

from mmattn.utils.faults import FaultsError
from mmattn.video import clip_readers as opened
from mmattn.video import inferencer as module
from mmattn.video import overlay
from mmattn.video.frame_files import read_frame
from mmattn.video.inferencer import VOSInferencer
from mmattn.video.masks import PALETTE, draw_overlay, read_mask, read_palette, write_mask
from mmattn.video.session import ClipSession, Frame

from ..full_disk import full_disk
from . import clips
from .clips import LATE, LENGTH, SIZE, squares, video_frames, write_video


@pytest.fixture(scope='module')
def folder(root):
    return root / 'JPEGImages'


@pytest.fixture(scope='module')
def masks(root):
    """The mask of frame 0, and that of ``LATE`` with object 9 alone."""
    late = root / f'late/{LATE:05}.png'
    write_mask(late, squares(LATE, 1, 5, 9) // 9 * 9)
    return [root / 'Annotations/00000.png', late]


@pytest.fixture(scope='module')
def loaded(small_sst):
    return VOSInferencer(small_sst.config, small_sst.checkpoint, device='cpu', show_progress=False)


@pytest.fixture
def inferencer(loaded, monkeypatch):
    """The inferencer, which counts the frames that go through its backbone in ``frames``."""
    extract_feat = loaded.model.extract_feat

    def counting(images):
        loaded.frames += len(images)
        return extract_feat(images)

    loaded.frames = 0
    monkeypatch.setattr(loaded.model, 'extract_feat', counting)
    return loaded


@pytest.fixture(scope='module')
def whole(loaded, folder, masks, tmp_path_factory):
    """The results of an uninterrupted run with both masks in parts of at most 8 frames."""
    out = tmp_path_factory.mktemp('whole')
    loaded(folder, masks, out, max_frames=8)
    return out


def contents(out):
    return {path.name: path.read_bytes() for path in (out / 'masks').iterdir()}


# results


@pytest.mark.one_case
@pytest.mark.parametrize(('references', 'early'), [('nearest', True), ('all', True), ('last', False)])
def test_a_later_mask_corrects_and_with_nearest_and_all_also_earlier_frames(
    loaded, root, folder, masks, tmp_path, references, early
):
    """As a session does that gets the masks in time: before all frames, or with theirs."""
    given = {0: read_mask(masks[0]), LATE: squares(LATE, 1, 5, 9)}
    session = ClipSession(loaded.model, **{**loaded.model.test_cfg, 'max_frames': 8, 'references': references})
    images = [read_frame(path) for path in sorted(folder.iterdir())]
    added, with_frame = (given, {}) if early else ({}, given)
    for number, mask in added.items():
        session.add(Frame(number, images[number], mask))
    frames = [Frame(i, image, with_frame.get(i)) for i, image in enumerate(images)]
    expected = [ids for _, ids in session.segment(frames)]
    written = loaded(folder, root / 'Annotations', tmp_path, 8, overlay=False, references=references)
    found = [read_mask(path) for path in written]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(found[LATE], given[LATE])
    assert any((ids == 9).any() for ids in found[:LATE]) == early


def test_a_video_file_is_the_folder_of_its_frames(loaded, folder, masks, tmp_path):
    video = write_video(tmp_path / 'clip.mp4', [read_frame(path) for path in sorted(folder.iterdir())])
    frames, _ = video_frames(video)
    (tmp_path / 'frames').mkdir()
    for number, image in enumerate(frames):
        cv2.imwrite(str(tmp_path / f'frames/{number:05}.png'), image)
    from_file = loaded(video, masks, tmp_path / 'a', max_frames=8)
    from_folder = loaded(tmp_path / 'frames', masks, tmp_path / 'b', max_frames=8)
    assert [path.name for path in from_file] == [path.name for path in from_folder]
    assert len(from_file) == LENGTH
    assert contents(tmp_path / 'a') == contents(tmp_path / 'b')
    for name, rate in (('a', 12.5), ('b', 24)):
        found, said = video_frames(tmp_path / name / 'overlay.mp4')
        assert (len(found), said) == (LENGTH, rate)


def test_frames_without_numbers_and_of_odd_sides(small_sst, tmp_path):
    for i, name in enumerate(('one', 'three', 'two')):
        Image.fromarray(clips.frame(squares(i, 1, 5, size=(31, 45)), i)).save(tmp_path / f'{name}.png')
    write_mask(tmp_path / 'mask', squares(0, 1, size=(31, 45)))
    inferencer = VOSInferencer(Config.fromfile(small_sst.config), str(small_sst.checkpoint), show_progress=False)
    written = inferencer(str(tmp_path), f'{tmp_path}/mask@0', str(tmp_path / 'out'))
    assert [path.name for path in written] == ['one.png', 'three.png', 'two.png']
    frames, _ = video_frames(tmp_path / 'out/overlay.mp4')
    assert [frame.shape for frame in frames] == [(32, 46, 3)] * 3  # codecs want even sides


# overlay


def test_draw_overlay():
    image = np.random.default_rng(0).integers(0, 256, (12, 16, 3), np.uint8)
    ids = np.zeros((12, 16), np.uint8)
    ids[2:8, 3:9] = 5
    ids[10, 14] = 2
    drawn = draw_overlay(image, ids, 0.25)
    expected = image.copy()
    expected[1:9, 2:10] = PALETTE[5][::-1]
    expected[3:7, 4:8] = np.rint(0.75 * image[3:7, 4:8] + 0.25 * PALETTE[5][::-1])
    expected[9:, 13:] = PALETTE[2][::-1]
    np.testing.assert_array_equal(drawn, expected)
    np.testing.assert_array_equal(draw_overlay(image, 0 * ids, 1), image)


def test_the_overlay_shows_frames_and_masks(whole, folder):
    frames, _ = video_frames(whole / 'overlay.mp4')
    assert len(frames) == LENGTH
    fourcc = int(cv2.VideoCapture(str(whole / 'overlay.mp4')).get(cv2.CAP_PROP_FOURCC))
    assert fourcc.to_bytes(4, 'little') in (b'vp09', b'VP90', b'avc1', b'h264')  # browsers play it
    for frame, path in zip(frames, sorted(folder.iterdir())):
        image = read_frame(path)
        ids = read_mask(whole / f'masks/{path.stem}.png')
        expected = draw_overlay(image, ids, 0.5).astype(int)
        assert abs(frame - expected).mean() < 20  # codecs blur colours
        assert abs(frame - expected).mean() < abs(frame - image.astype(int)).mean() or not ids.any()


# whose mask is it?


def begins(written, i):
    """The first frame whose mask shows object ``i``, and that mask."""
    return next((number, ids == i) for number, ids in enumerate(map(read_mask, written)) if (ids == i).any())


FRAMES_OF_MASKS = [  # of the folder and the video, the names, and the frames that they belong to
    ('folder', ['any name.png'], [0]),
    ('folder', ['2.png'], [0]),  # no frame is called exactly so
    ('folder', ['00003.png'], [3]),
    ('folder', ['any name.png@3', 'x/00000.png'], [3, 0]),
    ('folder', ['any name.png@00003'], [3]),
    ('folder', ['x/00000.png', 'x/00004.png'], [0, 4]),  # the folder, in which an empty mask may lie
    ('video', ['bear2.png'], [0]),  # a single one of any name
    ('video', ['00002.png'], [0]),
    ('video', ['bear.png@3'], [3]),
    ('video', ['bear2.png', 'other.png@3'], [0, 3]),
    ('video', ['bear3.png@1', 'other.png'], [1, 0]),
    ('video', ['00000.png', '2.png'], [0, 2]),
    ('video', ['x/mask_0.png', 'x/mask_3.png'], [0, 3]),  # the folder
    ('video', ['x/00003.png'], [3]),
]


@pytest.mark.parametrize(('kind', 'names', 'frames'), FRAMES_OF_MASKS)
def test_whose_mask_is_it(loaded, folder, tmp_path, kind, names, frames):
    clip = folder
    if kind == 'video':
        clip = write_video(tmp_path / 'clip.avi', [*map(read_frame, sorted(folder.iterdir())[:4])], codec='MJPG')
    for i, name in enumerate(names, 1):
        write_mask(tmp_path / name.partition('@')[0], squares(0, i))
    if names[0] == 'x/00000.png':
        write_mask(tmp_path / 'x/00001.png', squares(0))
    given = tmp_path / 'x' if names[0].startswith('x/') else [tmp_path / name for name in names]
    written = loaded(clip, given, tmp_path / 'out', overlay=False)
    for i, frame in enumerate(frames, 1):
        number, shown = begins(written, i)
        assert number == frame
        np.testing.assert_array_equal(shown, squares(0, i) == i)


@pytest.mark.parametrize(('mask', 'frame'), [('00105.png', 1), ('00105.png@110', 2)])
def test_numbers_in_names_that_begin_elsewhere(loaded, tmp_path, mask, frame):
    clips.clip(tmp_path, '', [squares(p, 1) for p in range(3)], numbers=[100, 105, 110], masked=(1,))
    written = loaded(tmp_path / 'JPEGImages', f'{tmp_path}/Annotations/{mask}', tmp_path / 'a', overlay=False)
    assert begins(written, 1)[0] == frame


def test_masks_and_overlay_have_the_colours_of_the_given_mask(loaded, folder, tmp_path):
    """An object in a dark colour is drawn in that of DAVIS."""
    image = Image.fromarray(squares(0, 1, 5))
    palette = [0, 0, 0, 20, 20, 20, *[0] * 9, 0, 200, 250]
    image.putpalette(palette)
    image.save(tmp_path / 'mask.png')
    written = loaded(folder, tmp_path / 'mask.png', tmp_path / 'out')
    expected = PALETTE.copy()
    expected[: len(palette) // 3] = np.reshape(palette, (-1, 3))
    np.testing.assert_array_equal(read_palette(written[-1]), expected)
    first = video_frames(tmp_path / 'out/overlay.mp4')[0][0].astype(int)
    expected[1] = PALETTE[1]
    drawn = draw_overlay(read_frame(folder / '00000.jpg'), squares(0, 1, 5), 0.5, expected)
    davis = draw_overlay(read_frame(folder / '00000.jpg'), squares(0, 1, 5), 0.5)
    assert abs(first - drawn).mean() < abs(first - davis).mean()


# runs that break


def test_a_full_disk_is_an_error_and_what_killed_runs_left_is_removed(loaded, folder, masks, tmp_path):
    """No short overlay stays."""
    with full_disk(3000), pytest.raises(OSError, match=r'overlay\.mp4: (\d+ of 24 frames|.*too large)'):
        loaded(folder, masks, tmp_path, max_frames=8)
    assert sorted(path.name for path in tmp_path.iterdir()) == ['.lock', 'masks', 'run.json']
    (tmp_path / 'masks/.00003.0123456789ab.part.png').write_bytes(b'half')
    (tmp_path / '.overlay.0123456789ab.part.mp4').write_bytes(b'half')
    loaded(folder, masks, tmp_path, max_frames=8)
    assert len(video_frames(tmp_path / 'overlay.mp4')[0]) == LENGTH
    assert sorted(path.name for path in tmp_path.rglob('.*')) == ['.lock']
    with full_disk(100), pytest.raises(OSError, match=r"File too large: '.*/b/run\.json'"):
        loaded(folder, masks, tmp_path / 'b')
    (tmp_path / 'masks/00001.png').write_bytes(b'')
    (tmp_path / 'overlay.mp4').unlink()
    with pytest.raises(ValueError, match=r'masks/00001\.png'):
        loaded(folder, masks, tmp_path, max_frames=8)


def break_at(monkeypatch, number):
    """Have the frame of this number not be read."""

    def read(path):
        if path.stem == f'{number:05}':
            raise KeyboardInterrupt
        return read_frame(path)

    monkeypatch.setattr(opened, 'read_frame', read)


def test_a_run_goes_on_where_it_broke(inferencer, whole, folder, masks, tmp_path, monkeypatch):
    """Parts are frames 0–7, then 7 at a time, the reference frame beside them: 8–14, 15–21, 22–23."""
    with monkeypatch.context() as patch:
        break_at(patch, 17)
        with pytest.raises(KeyboardInterrupt):
            inferencer(folder, masks, tmp_path, max_frames=8)
    assert contents(tmp_path) == {name: data for name, data in contents(whole).items() if name < '00015'}
    assert not (tmp_path / 'overlay.mp4').exists()
    (tmp_path / 'masks/00009.png').unlink()  # and with it its part
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / 'masks').iterdir()}

    inferencer.frames = 0
    written = inferencer(folder, masks, tmp_path, max_frames=8)
    assert inferencer.frames == 2 + 7 + 7 + 2  # two reference frames, three parts
    assert contents(tmp_path) == contents(whole)
    assert written == sorted((tmp_path / 'masks').iterdir())
    assert all(time == written[int(name[:5])].stat().st_mtime_ns for name, time in before.items() if name < '00008')
    frames, expected = (video_frames(path / 'overlay.mp4')[0] for path in (tmp_path, whole))
    np.testing.assert_array_equal(frames, expected)


def test_results_replace_no_file_of_the_user(loaded, folder, masks, tmp_path):
    """Neither the input nor what is of unknown origin, also if results may be overwritten."""
    for name in ('overlay.mp4', 'film/overlay.mp4'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_video(tmp_path / name, [clips.frame(squares(p, 1), p) for p in range(3)])
    for name in ('masks/00003.png', 'other/masks/00000.png', 'torn/masks/00000.png'):
        write_mask(tmp_path / name, squares(0, 1))
    (tmp_path / 'torn/run.json').write_text('{"video"')
    before = {path: path.read_bytes() for path in tmp_path.rglob('[!.]*.*')}
    for out, inputs, named in (
        ('', (folder, tmp_path / 'masks'), ''),
        ('', (folder, [masks[0], tmp_path / 'masks/00003.png']), ''),
        ('', (tmp_path / 'overlay.mp4', f'{masks[0]}@0'), ''),
        ('other', (folder, masks), 'masks'),
        ('torn', (folder, masks), 'run.json'),
        ('film', (folder, masks), 'overlay.mp4'),
    ):
        with pytest.raises(ValueError, match=str(tmp_path / out / named)):
            loaded(*inputs, tmp_path / out, overwrite=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob('[!.]*.*')} == before
    film = tmp_path / 'film/overlay.mp4'
    loaded(folder, masks[0], film.parent, overlay=False)
    assert film.read_bytes() == before[film]
    loaded(folder, masks[0], film.parent)  # a run that is there may want more
    assert len(video_frames(film)[0]) == LENGTH


# memory


@pytest.mark.slow
def test_memory_does_not_grow_with_the_clip(loaded, folder, masks, tmp_path, monkeypatch, held_frames):
    """No more frames are held than a part and the next one's first, nor more tensors late than early."""
    most, tensors = [], {}

    def write(path, ids, palette):
        most.append(held_frames())
        if path.stem in ('00008', '00015'):  # the first of a part each
            tensors[path.stem] = clips.tensor_bytes()
        write_mask(path, ids, palette)

    monkeypatch.setattr(module, 'write_mask', write)
    loaded(folder, masks[0], tmp_path, max_frames=8)
    assert len(most) == LENGTH
    assert max(most) <= 9 + opened.AHEAD
    assert tensors['00008'] == tensors['00015'] > 0


# what must be an error


@pytest.fixture
def idle(loaded, monkeypatch):
    """An inferencer that must not come as far as its model."""
    monkeypatch.setattr(loaded.model, 'extract_feat', lambda *args: pytest.fail('the model ran'))
    return loaded


@pytest.fixture
def spoilt(tmp_path):
    """Files of all kinds."""
    write_mask(tmp_path / 'good.png', squares(0, 1))
    write_mask(tmp_path / 'empty.png', np.zeros(SIZE, np.uint8))
    write_mask(tmp_path / 'large.png', squares(0, 1, size=(31, 50)))
    Image.fromarray(squares(0, 1) * np.uint8(255)).save(tmp_path / 'white.png')
    (tmp_path / 'text.png').write_text('no image')
    (tmp_path / 'folder').mkdir()
    (tmp_path / 'links/00001.png').mkdir(parents=True)
    (tmp_path / 'links/00000.png').symlink_to(tmp_path / 'nowhere')
    for number in (0, 2):
        write_mask(tmp_path / f'empties/{number:05}.png', np.zeros(SIZE, np.uint8))
    pages = [Image.new('RGB', (44, 30), (shade, 0, 0)) for shade in (0, 100)]
    pages[0].save(tmp_path / 'pages.tif', save_all=True, append_images=pages[1:])
    write_video(tmp_path / 'clip.mp4', [clips.frame(squares(p, 1), p) for p in range(5)])
    (tmp_path / 'twins').mkdir()
    for name in ('a.png', 'a.jpg'):
        Image.new('RGB', (50, 20)).save(tmp_path / 'twins' / name)
    clips.clip(tmp_path, '', [squares(p, 1) for p in range(9)], 'frames', masked=())
    (tmp_path / 'frames/00002.jpg').unlink()
    cut = tmp_path / 'frames/00004.jpg'
    cut.write_bytes(cut.read_bytes()[:400])
    Image.new('RGB', (50, 20)).save(tmp_path / 'frames/00006.jpg')
    clips.clip(tmp_path, '', [squares(0, 1, size=(20, 8194))], 'wide', 'of wide', suffix='.png')
    return tmp_path


@pytest.mark.parametrize(
    ('video', 'given', 'named'),
    [
        ('', 'empty.png', 'empty.png'),
        ('', 'large.png', 'large.png'),
        ('', 'text.png', 'text.png'),
        ('', 'missing.png', 'missing.png'),
        ('', 'good.png@0 large.png@1 empty.png@2', 'large.png empty.png'),
        ('', 'good.png white.png', 'white.png@20'),  # how to say of which frame it is
        ('', 'good.png@last', 'good.png@last'),
        ('', 'good.png@-1', 'good.png@-1'),
        ('', 'x@20.png', 'x.png@20'),
        ('', 'links', 'links/00000.png links/00001.png'),
        ('', 'good.png@3 white.png@3', 'white.png'),
        ('', 'good.png@24', '00023.jpg'),
        ('', 'empties', 'empties/00000.png empties/00002.png'),
        ('good.png', '', 'good.png'),  # OpenCV takes numbered pictures for a clip
        ('pages.tif', '', 'pages.tif'),  # and a TIFF for a clip of its first page
        ('text.png', '', 'text.png'),
        ('clip.mp4', '', 'clip.mp4'),  # it is too short for the second mask
        ('twins', '', 'twins'),
        ('none.mp4', '', 'none.mp4'),
        ('frames', 'good.png', '00003.jpg 00004.jpg 00006.jpg'),  # the first after the gap
        ('wide', 'of wide', 'overlay.mp4'),
    ],
)
def test_what_is_wrong_is_named_before_work(idle, folder, masks, spoilt, video, given, named, monkeypatch):
    monkeypatch.setattr(overlay, 'CODECS', ('mp4v',))  # which has no pictures as wide as 8194 pixels
    given = [spoilt / name for name in given.split()] if given != 'of wide' else spoilt / given
    with pytest.raises((ValueError, OSError)) as raised:
        idle(spoilt / video if video else folder, given or masks, spoilt / 'out')
    said = raised.value.lines() if isinstance(raised.value, FaultsError) else [str(raised.value)]
    for name, line in zip(named.split(), said, strict=True):
        assert name in line
    assert not (spoilt / 'out').exists()


def test_a_video_that_ends_before_a_mask(loaded, masks, tmp_path):
    images = [clips.frame(squares(p, 1), p) for p in range(20)]
    data = write_video(tmp_path / 'whole.avi', images, codec='MJPG').read_bytes()
    cut = tmp_path / 'cut.avi'
    cut.write_bytes(data[: len(data) // 2])
    count = len(video_frames(cut)[0])
    assert 0 < count < 20
    assert len(loaded(cut, f'{masks[0]}@0', tmp_path / 'a')) == count
    with pytest.raises(ValueError, match=rf'cut\.avi: only {count} of 20 .* frame 18'):
        loaded(cut, [f'{masks[0]}@0', f'{masks[1]}@18'], tmp_path / 'b')


def test_the_number_of_frames_that_matroska_announces_is_an_estimate(loaded, masks, tmp_path, monkeypatch):
    images, said = [clips.frame(squares(p, 1), p) for p in range(6)], []
    monkeypatch.setattr(module, 'print_log', lambda *line: said.append(line))
    for announced in (3, 24):
        video = clips.write_matroska(tmp_path / f'{announced}.mkv', images, announced)
        given = [f'{masks[0]}@0', f'{masks[1]}@5']
        assert len(loaded(video, given, tmp_path / f'out{announced}', overlay=False)) == 6
    ((text, _, level),) = said
    assert re.match(rf'{video}: 6 frames .* announces 24', text)
    assert level == logging.WARNING


@pytest.mark.parametrize('trained', [False, True])
def test_a_model_without_weights_is_a_warning(small_sst, monkeypatch, trained):
    said = []
    monkeypatch.setattr(module, 'print_log', lambda *line: said.append(line))
    VOSInferencer(small_sst.config, small_sst.checkpoint if trained else None, device='cpu')
    assert [(line[0].split()[0], *line[1:]) for line in said] == [('weights', 'current', logging.WARNING)] * (
        not trained
    )


def test_peak_memory_is_in_mebibytes(monkeypatch):
    """On a GPU, that of the model's device."""
    allocated = {torch.device('cuda:1'): 3 * 2**20}
    monkeypatch.setattr(torch.cuda, 'max_memory_allocated', allocated.__getitem__)
    assert module._peak_memory(torch.device('cuda:1')) == 3
    bytes_ = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == 'darwin' else 1024)
    assert module._peak_memory(torch.device('cpu')) == pytest.approx(bytes_ / 2**20, rel=0.01)


def test_a_frame_rate_that_mpeg_4_has_not(loaded, masks, tmp_path, monkeypatch):
    video = write_video(tmp_path / 'clip.avi', [clips.frame(squares(p, 1), p) for p in range(3)], 5000, 'MJPG')
    monkeypatch.setattr(opened, 'FRAME_RATES', (1, cv2.VideoCapture(str(video)).get(cv2.CAP_PROP_FPS) - 1))
    loaded(video, f'{masks[0]}@0', tmp_path / 'out')
    assert video_frames(tmp_path / 'out/overlay.mp4')[1] == 24
