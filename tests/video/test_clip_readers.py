"""Frames on which to paint, and rotated videos."""

import logging
import re
import struct
from threading import Event, get_ident

import cv2
import numpy as np
import pytest
from PIL import Image

from mmattn.video import clip_readers, write_frame
from mmattn.video.clip_readers import open_clip, read_ahead
from mmattn.video.masks import write_mask

from .clips import write_matroska, write_video

IMAGES = [cv2.circle(np.full((30, 44, 3), 90, np.uint8), (6 + 2 * i, 8), 4, (0, 0, 255), -1) for i in range(12)]
MATRIX = struct.pack('>9i', 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
ROTATED = struct.pack('>9i', 0, 1 << 16, 0, -1 << 16, 0, 0, 30 << 16, 0, 1 << 30)  # by 90°, as phones write it


@pytest.fixture(scope='module')
def phone(tmp_path_factory):
    """A video of 59.94 frames per second that its metadata rotate."""
    path = write_video(tmp_path_factory.mktemp('phone') / 'phone.mp4', IMAGES, 60000 / 1001)
    data = path.read_bytes()
    start = data.index(MATRIX, data.index(b'tkhd'))
    path.write_bytes(data[:start] + ROTATED + data[start + len(ROTATED) :])
    return path


@pytest.mark.parametrize(('suffix', 'number'), [('', 0), ('@0', 0), ('@7', 7)])
def test_the_frame_to_paint_on_is_rotated_like_the_video(phone, tmp_path, suffix, number):
    clip = open_clip(phone)
    assert clip.size == (44, 30)
    assert clip.frame_rate == pytest.approx(59.94, abs=0.01)
    path = write_frame(phone, f'{tmp_path}/frame.png{suffix}')
    shown = np.array(Image.open(path))[..., ::-1]
    assert abs(shown.astype(int) - cv2.rotate(IMAGES[number], cv2.ROTATE_90_CLOCKWISE)).mean() < 8
    np.testing.assert_array_equal(shown, [image for _, image in clip.read()][number])


def test_the_frame_of_a_folder_is_found_by_its_number(tmp_path):
    (tmp_path / 'frames').mkdir()
    for number, shade in ((5, 10), (6, 20)):
        Image.new('RGB', (4, 3), (shade, 0, 0)).save(tmp_path / f'frames/img_{number}.png')
    for entry, shade in (('a.png', 10), ('b.png@6', 20)):
        path = write_frame(tmp_path / 'frames', tmp_path / entry)
        assert np.array(Image.open(path))[0, 0].tolist() == [shade, 0, 0]
    with pytest.raises(ValueError, match=r'no frame 9 .*img_5\.png .*img_6\.png'):
        write_frame(tmp_path / 'frames', tmp_path / 'c.png@9')
    with pytest.raises(FileNotFoundError, match='none'):
        open_clip(tmp_path / 'none')


def test_no_frame_replaces_what_is_there(tmp_path):
    """A painted mask, a frame of the clip, also by a link. A frame that is as it was written may be asked for again."""
    for number, image in enumerate(IMAGES[:3]):
        path = tmp_path / f'frames/{number:05}.png'
        path.parent.mkdir(exist_ok=True)
        cv2.imwrite(str(path), image)
    first = write_frame(tmp_path / 'frames', tmp_path / 'first.png')
    assert write_frame(tmp_path / 'frames', tmp_path / 'first.png') == first
    with Image.open(first) as image:
        masked = image.copy()
    masked.putalpha(Image.new('L', masked.size, 100))
    masked.save(tmp_path / 'alpha.png')
    write_mask(tmp_path / 'mask.png', IMAGES[0][..., 0] // 90)
    (tmp_path / 'link.png').symlink_to(tmp_path / 'frames/00002.png')
    (tmp_path / 'text.png').write_text('of mine')
    before = {path: path.read_bytes() for path in tmp_path.rglob('*.png')}
    for entry in ('mask.png', 'alpha.png', 'text.png', 'first.png@1', 'link.png@2', 'frames/00001.png', 'frames/a.png'):
        with pytest.raises(ValueError, match=str(tmp_path / entry).partition('@')[0]):
            write_frame(tmp_path / 'frames', tmp_path / entry)
    assert {path: path.read_bytes() for path in tmp_path.rglob('*.png')} == before


def test_frames_that_are_turned_in_a_viewer_are_named(tmp_path, monkeypatch):
    """The first, of the orientations 1 (upright), 6 and 8. Frames are as they are stored."""
    said = []
    monkeypatch.setattr(clip_readers, 'print_log', lambda *line: said.append(line))
    for number, orientation in enumerate([None, 1, 6, 8]):
        image = Image.new('RGB', (8, 4))
        exif = image.getexif()
        if orientation:
            exif[0x0112] = orientation
        image.save(tmp_path / f'{number}.jpg', exif=exif)
        clip = open_clip(tmp_path)
        assert len(said) == max(0, number - 1)
    text, logger, level = said[-1]
    assert (logger, level) == ('current', logging.WARNING)
    assert re.match(rf'{tmp_path}: 2 .* 2\.jpg', text)
    assert clip.size == (4, 8)
    assert {image.shape for _, image in clip.read()} == {(4, 8, 3)}


def test_frames_are_read_one_after_the_other():
    """A video has one position: the second frame waits while the first is read, though both are due."""
    due, reading = Event(), []

    def items():
        yield from (0, 1)
        due.set()
        yield 2

    def read(item):
        reading.append((item, get_ident()))
        return item if due.wait(10) else None

    assert [*read_ahead(read, items())] == [0, 1, 2]
    assert [item for item, _ in reading] == [0, 1, 2]
    assert len({thread for _, thread in reading} - {get_ident()}) == 1


def test_frames_that_a_file_does_not_announce(tmp_path):
    """Of Matroska, OpenCV knows the number from the duration. A frame is refused if it is not there."""
    video = write_matroska(tmp_path / 'a.mkv', IMAGES, announced=3)
    assert open_clip(video).length == 3
    assert open_clip(write_matroska(tmp_path / 'one.mkv', IMAGES[:1], announced=1)).length == 1
    last = np.array(Image.open(write_frame(video, tmp_path / 'last.png@11')))[..., ::-1]
    assert abs(last.astype(int) - IMAGES[11]).mean() < 8
    clip = open_clip(video)
    with pytest.raises(ValueError, match=r'no frame 12 .*last frame is 11$'):
        clip.find_number('12')
    assert clip.length == clip.find_number('11') + 1 == 12


@pytest.mark.parametrize('frame', ['a.jpg', 'a.png@12'])
def test_frames_that_cannot_be_written(phone, tmp_path, frame):
    with pytest.raises(ValueError, match=frame.rpartition('@')[2].rpartition('.')[2]):
        write_frame(phone, tmp_path / frame)
    assert write_frame(phone, tmp_path / 'none/x/a.png').exists()
