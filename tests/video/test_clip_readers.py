"""Frames on which to paint, rotated videos, and streams."""

import logging
import os
import re
import signal
import struct
from threading import Event, get_ident
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from PIL import Image

from mmattn.video import clip_readers, write_frame
from mmattn.video.clip_readers import VideoStream, open_clip, read_ahead
from mmattn.video.masks import write_mask

from .clips import write_matroska

IMAGES = [cv2.circle(np.full((30, 44, 3), 90, np.uint8), (6 + 2 * i, 8), 4, (0, 0, 255), -1) for i in range(12)]
MATRIX = struct.pack('>9i', 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
ROTATED = struct.pack('>9i', 0, 1 << 16, 0, -1 << 16, 0, 0, 30 << 16, 0, 1 << 30)  # by 90°, as phones write it


@pytest.fixture(scope='module')
def phone(tmp_path_factory):
    """A video of 59.94 frames per second that its metadata rotate."""
    path = tmp_path_factory.mktemp('phone') / 'phone.mp4'
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*'mp4v'), 60000 / 1001, (44, 30))
    for image in IMAGES:
        writer.write(image)
    writer.release()
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


def test_a_frame_behind_the_end_of_a_stream(phone, tmp_path):
    """Its length is not known before."""
    address = f'file://{phone}'
    assert write_frame(address, tmp_path / 'a.png@11').exists()
    with pytest.raises(ValueError, match=rf'^{address}: .* 12$'):
        write_frame(address, tmp_path / 'b.png@12')
    assert not (tmp_path / 'b.png').exists()


def test_a_camera_that_changes_its_size(phone):
    """With a stand-in: FFmpeg gives all frames the first size."""
    stream = VideoStream(str(phone))
    images = iter([*[np.zeros((44, 30, 3), np.uint8)] * 2, np.zeros((44, 31, 3), np.uint8)])
    stream._video = SimpleNamespace(read=lambda: (True, next(images)), get=lambda number: 0.0)
    frames = stream.read()
    assert [next(frames)[0] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match=rf'^{phone}: .* 3 .*31×44.*30×44'):
        next(frames)


def test_frames_that_a_file_does_not_announce(tmp_path):
    """Of Matroska, OpenCV knows the number from the duration. A frame is refused if it is not there."""
    video = write_matroska(tmp_path / 'a.mkv', IMAGES, announced=3)
    assert open_clip(video).length == 3
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


def test_standard_input_is_a_stream_that_is_read_once(phone):
    before, source = os.dup(0), os.open(phone, os.O_RDONLY)
    try:
        os.dup2(source, 0)
        stream = open_clip('-')
        found = [*stream.read()]
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(source)
    assert stream.is_stream
    assert stream.length is None
    for (number, image), (expected_number, expected) in zip(found, open_clip(phone).read(), strict=True):
        assert number == expected_number
        np.testing.assert_array_equal(image, expected)


def test_an_interrupt_ends_a_stream_and_a_second_one_is_an_error(phone):
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run under nohup
    usual = signal.getsignal(signal.SIGINT)
    assert len([*VideoStream(str(phone)).read()]) == len(IMAGES)
    assert signal.getsignal(signal.SIGINT) is usual
    found = []
    for number, _ in VideoStream(str(phone)).read():
        found.append(number)
        if number == 4:
            signal.raise_signal(signal.SIGINT)
    assert found == [0, 1, 2, 3, 4]
    assert signal.getsignal(signal.SIGINT) is usual
    frames = VideoStream(str(phone)).read()
    next(frames)
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    frames.close()
    signal.signal(signal.SIGINT, ignored)


@pytest.mark.parametrize('source', ['rtsp://127.0.0.1:9/none', 'http://127.0.0.1:9/none.mp4', '99'])
def test_streams_that_do_not_open(source):
    with pytest.raises(ValueError, match=f'^{source}: '):
        open_clip(source)
