"""Cut-outs against frames and masks, decoded by the libraries that show them, and the times of frames."""

import logging
from fractions import Fraction

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import maximum_filter

from mmattn.video import cutouts, video_writers
from mmattn.video.cutouts import cut_out, read_cutouts, soft_edges
from mmattn.video.frame_files import read_frame
from mmattn.video.inferencer import VOSInferencer
from mmattn.video.masks import read_mask
from mmattn.video.video_writers import check_writer, open_writer

from ..full_disk import full_disk
from ..requirements import requires
from . import clips
from .clips import SIZE, squares
from .test_inferencer import break_at, video_frames

LENGTH = 10
RATE = 24.0  # of a folder


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    path = tmp_path_factory.mktemp('clip')
    clips.clip(path, '', [squares(p, 1, 5) for p in range(LENGTH)], masked=(0,))
    return path


@pytest.fixture(scope='module')
def follow(small_sst):
    inferencer = VOSInferencer(small_sst.config, small_sst.checkpoint, device='cpu', show_progress=False)

    def follow(root, out, *formats, masks=None, **options):
        masks = root / 'Annotations/00000.png' if masks is None else masks
        return inferencer(root / 'JPEGImages', masks, out, 8, options.pop('overlay', False), cutouts=formats, **options)

    follow.inferencer = inferencer
    return follow


def pngs(out):
    return [np.array(Image.open(path)) for path in sorted((out / 'cutout').iterdir())]


def gif_frames(path):
    """RGBA and seconds of each frame."""
    with Image.open(path) as image:
        frames = []
        for number in range(image.n_frames):
            image.seek(number)
            frames.append((np.array(image.convert('RGBA')), image.info['duration'] / 1000))
    return zip(*frames)


def decoded(path, codec=None):
    """Frames of a video as PyAV decodes them, and their times."""
    import av

    with av.open(str(path)) as file:
        stream = file.streams.video[0]
        context = av.CodecContext.create(codec, 'r') if codec else stream.codec_context
        context.extradata = stream.codec_context.extradata
        packets = [packet for packet in file.demux(stream) if packet.size]
        frames = [frame for packet in [*packets, None] for frame in context.decode(packet)]
        return frames, [float(frame.pts * stream.time_base) for frame in frames], dict(stream.metadata)


def test_edges_are_soft_and_nothing_else():
    """Of a disk in another colour, whose mask is off by a pixel."""
    y, x = np.mgrid[:60, :90]
    distance = np.hypot(y - 30, x - 45)
    image = np.where((distance < 20)[..., None], (200, 90, 20), (20, 160, 220)).astype(np.uint8)
    cut = cut_out(image, distance < 21)
    opacity = cut[..., 3].astype(int)
    assert (opacity[distance < 18] == 255).all()
    assert (opacity[distance > 24] == 0).all()
    assert ((opacity > 0) & (opacity < 255)).any()
    assert ((opacity >= 128) != (distance < 20)).sum() < ((distance < 21) != (distance < 20)).sum()
    np.testing.assert_array_equal(cut[opacity > 0][:, :3], image[opacity > 0])
    near = maximum_filter(soft_edges(image, distance < 21) > 0, 17)
    np.testing.assert_array_equal(cut[..., :3].any(-1), near)  # what is further behind it is not in the file
    share = cut_out(image, distance < 21, (255, 0, 0))
    expected = (opacity[..., None] * image + (255 - opacity[..., None]) * np.array((0, 0, 255))) / 255
    assert abs(share - expected).max() <= 1
    assert not cut_out(image, np.zeros((60, 90), bool)).any()


def test_the_pictures_and_the_gif_of_a_chosen_object(follow, root, tmp_path):
    written = follow(root, tmp_path, 'png', 'gif', cutout_objects=[5])
    frames, seconds = gif_frames(tmp_path / 'cutout.gif')
    shown = pngs(tmp_path)
    assert len(shown) == len(frames) == len(written) == LENGTH
    assert sum(seconds) == pytest.approx(LENGTH / RATE, abs=0.005)
    for path, picture, frame in zip(written, shown, frames):
        expected = cut_out(read_frame(root / f'JPEGImages/{path.stem}.jpg'), read_mask(path) == 5)
        np.testing.assert_array_equal(picture, expected[..., [2, 1, 0, 3]])
        np.testing.assert_array_equal(frame[..., 3], 255 * (picture[..., 3] >= 128))
        inside = frame[..., 3] > 0
        if inside.any():
            assert abs(frame[inside].astype(int) - picture[inside])[:, :3].mean() < 6
    assert any(picture[..., 3].any() for picture in shown)
    follow(root, tmp_path, 'png', 'gif', background='#102030')  # other cut-outs of the same masks
    assert follow.inferencer.summary == 'no frame left to segment'
    for path, picture, frame in zip(written, pngs(tmp_path), next(gif_frames(tmp_path / 'cutout.gif'))):
        ids = read_mask(path)
        expected = cut_out(read_frame(root / f'JPEGImages/{path.stem}.jpg'), ids > 0, (16, 32, 48))
        np.testing.assert_array_equal(picture, expected[..., ::-1])
        assert (frame[..., 3] == 255).all()


def test_a_run_goes_on_where_it_broke(follow, root, tmp_path, monkeypatch):
    """And leaves no half cut-out."""
    follow(root, tmp_path / 'whole', 'png', 'gif')
    with monkeypatch.context() as patch:
        break_at(patch, 9)
        with pytest.raises(KeyboardInterrupt):
            follow(root, tmp_path / 'a', 'png', 'gif')
    assert not (tmp_path / 'a/cutout.gif').exists()
    follow(root, tmp_path / 'a', 'png', 'gif')
    for whole in (tmp_path / 'whole').rglob('cutout*/*.png'):
        assert (tmp_path / 'a' / whole.relative_to(tmp_path / 'whole')).read_bytes() == whole.read_bytes()
    assert (tmp_path / 'a/cutout.gif').read_bytes() == (tmp_path / 'whole/cutout.gif').read_bytes()
    follow(root, tmp_path / 'a', masks=root / 'Annotations/00000.png', overwrite=True)
    assert not [*(tmp_path / 'a').rglob('cutout*/*'), *(tmp_path / 'a').glob('cutout.*')]


def test_a_gif_has_the_times_of_frames(tmp_path):
    """A frame of less than two hundredths of a second is left out: browsers would show it for ten."""
    shades = [10, 60, 110, 160, 210]
    with open_writer(tmp_path / 'a.gif', SIZE, 30) as writer:
        for shade, time in zip(shades, (0, 0.1, 0.105, 0.133, 0.5)):
            writer.write(np.full((*SIZE, 3), shade, np.uint8), time)
    frames, seconds = gif_frames(tmp_path / 'a.gif')
    assert seconds == (0.1, 0.03, 0.37, 0.03)
    assert [int(frame[0, 0, 0]) for frame in frames] == [10, 60, 160, 210]


@requires('av')
def test_a_transparent_video(follow, root, tmp_path):
    follow(root, tmp_path, 'png', 'webm')
    frames, times, metadata = decoded(tmp_path / 'cutout.webm', 'libvpx-vp9')
    assert {name.lower(): value for name, value in metadata.items()}['alpha_mode'] == '1'  # browsers look for it
    assert times == pytest.approx([number / RATE for number in range(LENGTH)], abs=6e-4)
    for frame, picture in zip(frames, pngs(tmp_path), strict=True):
        assert frame.format.name == 'yuva420p'
        found = frame.to_ndarray(format='rgba').astype(int)
        assert abs(found - picture)[..., 3].mean() < 4
        inside = picture[..., 3] == 255
        if inside.any():
            assert abs(found - picture)[inside][:, :3].mean() < 15  # codecs blur colours


@requires('av')
def test_frames_keep_their_times(follow, root, tmp_path):
    """Of a video with a variable frame rate; and the colour behind the object."""
    import av

    ticks = [0, 40, 60, 100, 300, 320, 360, 1000, 1040, 1080]  # ms
    (tmp_path / 'video').mkdir()
    video = tmp_path / 'video/JPEGImages'  # where `follow` looks
    with av.open(str(video), 'w', format='matroska') as file:
        stream = file.add_stream('libx264', rate=25)
        stream.height, stream.width, stream.pix_fmt = *SIZE, 'yuv420p'
        stream.codec_context.time_base = Fraction(1, 1000)
        for number, tick in enumerate(ticks):
            image = clips.frame(squares(number, 1, 5), number)
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), 'rgb24')
            frame.pts, frame.time_base = tick, Fraction(1, 1000)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    masks = f'{root}/Annotations/00000.png@0'
    options = dict(overlay=True, background='lime')
    follow(tmp_path / 'video', tmp_path / 'out', 'webm', 'mp4', 'mov', 'mkv', 'gif', masks=masks, **options)
    for name in ('overlay.mp4', *(f'cutout.{suffix}' for suffix in ('webm', 'mp4', 'mov', 'mkv'))):
        frames, times, _ = decoded(tmp_path / 'out' / name)
        assert times == pytest.approx([tick / 1000 for tick in ticks], abs=2e-3), name
        if name != 'overlay.mp4':
            corner = frames[0].to_ndarray(format='rgb24')[-2:, :2].reshape(-1, 3).mean(0)
            assert corner == pytest.approx((0, 255, 0), abs=12), name
    _, seconds = gif_frames(tmp_path / 'out/cutout.gif')
    assert np.cumsum(seconds[:-1]) == pytest.approx(np.array(ticks[1:]) / 1000, abs=0.006)


@pytest.mark.parametrize(('step', 'warns'), [(0.04, False), (0.065, False), (0.075, True)])
def test_without_pyav_the_overlay_says_that_times_are_lost(tmp_path, monkeypatch, step, warns):
    monkeypatch.setattr(video_writers, 'has_pyav', lambda: False)
    said = []
    monkeypatch.setattr(video_writers, 'print_log', lambda text, logger, level: said.append((text, level)))
    height, width = SIZE[0] + 1, SIZE[1] + 1  # odd sides are made even
    with open_writer(tmp_path / 'overlay.mp4', (height, width), 25) as writer:
        for time in (0, step, 2 * step):
            writer.write(np.zeros((height, width, 3), np.uint8), time)
    frames = video_frames(tmp_path / 'overlay.mp4')[0]
    assert [frame.shape for frame in frames] == [(height + height % 2, width + width % 2, 3)] * 3
    assert [level for _, level in said] == [logging.WARNING] * warns
    assert all('mmattn[cutouts]' in text for text, _ in said)


@requires('av')
def test_what_ffmpeg_cannot_write_is_an_error_with_the_size(tmp_path):
    """H.264 has at most 16,384 pixels a side."""
    with pytest.raises(OSError, match=r'\.mp4 of 16×20000, 24 '):
        video_writers.PyAVVideo(tmp_path / 'a.mp4', (20000, 16), RATE)


@requires('av')
@pytest.mark.parametrize(
    ('name', 'transparent', 'by_opencv'), [('a.mp4', False, True), ('a.mp4', True, False), ('a.mov', False, False)]
)
def test_only_an_mp4_without_transparency_is_written_by_opencv_if_ffmpeg_cannot(
    tmp_path, monkeypatch, name, transparent, by_opencv
):
    monkeypatch.setattr(video_writers, 'H264', ('libx264', dict(preset='none')))
    if by_opencv:
        with open_writer(tmp_path / name, SIZE, 25, transparent) as writer:
            writer.write(np.full((*SIZE, 3), 200, np.uint8), 0)
        frames, rate = video_frames(tmp_path / name)
        assert (len(frames), rate) == (1, 25)
        assert abs(frames[0].astype(int) - 200).mean() < 5
    else:
        with pytest.raises(OSError, match=f'^{tmp_path / name}: .*{SIZE[1]}×{SIZE[0]}, 25 '):
            check_writer(tmp_path / name, SIZE, 25, transparent)


@requires('av')
def test_a_container_that_has_not_the_codec_is_an_error_with_the_file(tmp_path, monkeypatch):
    """VP9, in place of H.264 where FFmpeg lacks that, is not for a .mov; the header shows it."""
    monkeypatch.setattr(video_writers, 'H264', ('unknown', {}))
    with pytest.raises(OSError, match=rf'^{tmp_path}/a\.mov: '):
        check_writer(tmp_path / 'a.mov', SIZE, 25)
    assert not any(tmp_path.iterdir())


def test_frames_that_opencv_could_not_write_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(video_writers, 'has_pyav', lambda: False)
    noise = np.random.default_rng(0).integers(0, 256, (20, 64, 64, 3), np.uint8)
    path = tmp_path / 'a.mp4'

    def write():
        with open_writer(path, (64, 64), 25) as writer:
            for number, image in enumerate(noise):
                writer.write(image, number / 25)

    with full_disk(2000), pytest.raises(OSError, match=rf'^{path}: 1?\d of 20 '):
        write()
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ('arguments', 'kind', 'names'),
    [
        ((['avi'], (), None), ValueError, "cutouts .*webm.*'avi'"),
        ((['png', 'mp4'], (), None), ValueError, 'mp4 .*--background'),
        (([], [1], None), ValueError, 'cutout_objects'),
        (([], (), 'red'), ValueError, 'background'),
        ((['png'], (), 'rot'), ValueError, 'rot'),
        ((['gif', 'webm'], (), None), ImportError, r"webm requires PyAV.*pip install 'mmattn\[cutouts\]'"),
    ],
)
def test_wrong_arguments(monkeypatch, arguments, kind, names):
    monkeypatch.setattr(cutouts, 'has_pyav', lambda: False)
    with pytest.raises(kind, match=names):
        read_cutouts(*arguments)


def test_what_is_wrong_is_said_before_work(follow, root, tmp_path, monkeypatch):
    monkeypatch.setattr(follow.inferencer.model, 'extract_feat', lambda *args: pytest.fail('the model ran'))
    with pytest.raises(ValueError, match=r'cutout_objects .*\[1, 5\].*\[7\]'):
        follow(root, tmp_path / 'out', 'png', cutout_objects=[5, 7])
    (tmp_path / 'taken').mkdir()
    (tmp_path / 'taken/cutout').symlink_to(root / 'JPEGImages')
    with pytest.raises(ValueError, match=r'taken .*input'):
        follow(root, tmp_path / 'taken', 'png')
