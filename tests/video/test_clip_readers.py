"""Frames on which to paint, rotated videos, and streams."""

import os
import signal
import struct

import cv2
import numpy as np
import pytest
from PIL import Image

from mmattn.video import write_frame
from mmattn.video.clip_readers import VideoStream, open_clip

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
