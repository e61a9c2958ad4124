"""Segment images with an ONNX file of export.py: write an index map with its palette and a colour overlay for each.

    python run_onnx.py MODEL.onnx IMAGE [IMAGE …] --out-dir DIR    # DIR/pred/*.png, DIR/vis/*.png

It requires only onnxruntime, numpy and Pillow: copy it with the model. It preprocesses images as in the config.
"""

import argparse
import io
import json
import os
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.PngImagePlugin import PngInfo

KEY = 'mmattn'  # of the metadata that export.py writes
FORMATS = 'JPEG', 'PNG', 'WEBP', 'BMP', 'TIFF'  # Pillow would open 40 others


def read(image, channel_order='RGB', max_pixels=None):
    """Read the pixels of an image, uint8 ``(H, W, 3)``, turned as its EXIF orientation says.

    Args:
        image (str, Path or bytes): a file, or the content of one.
        channel_order (str): 'RGB' or 'BGR'.
        max_pixels (int, optional): larger images are refused before they are decoded.
    """
    name, file = ('the image', io.BytesIO(image)) if isinstance(image, bytes) else (image, image)
    try:
        with Image.open(file, formats=FORMATS) as opened:
            if max_pixels is not None and opened.width * opened.height > max_pixels:
                raise ValueError(f'{name}: {opened.width} × {opened.height} is more than {max_pixels} pixels')
            if opened.mode.startswith(('I', 'F')):  # which Pillow would clip at 255
                raise ValueError(f'{name}: images must have 8 bits per channel; this one has more')
            pixels = np.asarray(ImageOps.exif_transpose(opened).convert('RGB'))
    except UnidentifiedImageError as error:  # whose message names an object in memory, not a file
        raise OSError(f'{name}: not an image of the formats {", ".join(FORMATS)} that Pillow can read') from error
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:  # Pillow's errors of broken or huge files
        raise OSError(f'{name}: {error}') from error
    return pixels if channel_order == 'RGB' else pixels[..., ::-1]


def resize(x, height, width, align_corners=False):
    """Resize the last two axes of a float32 array by bilinear interpolation, as PyTorch and OpenCV do: no smoothing."""
    for axis, length in ((-2, height), (-1, width)):
        size = x.shape[axis]
        if size == length:
            continue
        if align_corners:
            at = np.arange(length) * ((size - 1) / max(length - 1, 1))
        else:
            at = ((np.arange(length) + 0.5) * (size / length) - 0.5).clip(0, size - 1)
        first = at.astype(int)
        share = (at - first).astype(np.float32)
        share = share[:, None] if axis == -2 else share
        last = np.minimum(first + 1, size - 1)
        x = x.take(first, axis) * (1 - share) + x.take(last, axis) * share
    return x


def target_size(height, width, settings, fixed=None):
    """Return height and width to which an image is scaled.

    Args:
        height, width (int): size of the image.
        settings (dict, optional): 'resize' of the metadata.
        fixed (tuple[int, int], optional): height and width of a file's only input; a larger image is made to fit.
    """
    size = height, width
    if settings:
        # As in mmcv: a scale prevails over factors, and the product with factors is rounded before it is fitted.
        scale = settings['scale'] or [int(side * f + 0.5) for side, f in zip((width, height), settings['scale_factor'])]
        scale = scale[::-1]
        factor = min(max(scale) / max(size), min(scale) / min(size))
        size = tuple(
            int(side + 0.5) for side in ([side * factor for side in size] if settings['keep_ratio'] else scale)
        )
    if fixed is not None and any(side > most for side, most in zip(size, fixed)):
        factor = min(most / side for side, most in zip(size, fixed))
        size = tuple(min(most, max(1, int(side * factor + 0.5))) for side, most in zip(size, fixed))
    if min(size) < 1:
        raise ValueError(f'an image of {height} × {width} would be scaled to {size[0]} × {size[1]} pixels')
    return size


def padded_size(height, width, about, fixed=None):
    """Return height and width of what the network receives, from those of a scaled image."""
    divisor = about['size_divisor']
    return fixed or tuple(-(-side // divisor) * divisor for side in (height, width))


def preprocess(pixels, about, fixed=None):
    """Scale, normalise and pad an image.

    Args:
        pixels (np.ndarray): uint8 ``(H, W, 3)``.
        about (dict): the metadata of the file.
        fixed (tuple[int, int], optional): height and width of the file's only input.

    Returns:
        tuple: float32 ``(1, 3, H', W')``; height and width before padding at the bottom and on the right.
    """
    x = pixels.transpose(2, 0, 1).astype(np.float32)
    height, width = target_size(*x.shape[1:], about['resize'], fixed)
    x = np.rint(resize(x, height, width))
    mean, std = (np.array(about[key], np.float32)[:, None, None] for key in ('mean', 'std'))
    x = (x - mean) / std
    bottom, right = padded_size(height, width, about, fixed)
    padding = (0, 0), (0, bottom - height), (0, right - width)
    return np.pad(x, padding, constant_values=about['pad_value'])[None], (height, width)


def to_labels(logits, size, height, width, about):
    """Return the labels, uint8 ``(height, width)``, from logits ``(C, H', W')`` whose first rows and columns count."""
    logits = resize(logits[:, : size[0], : size[1]], height, width, about['align_corners'])
    if about['threshold'] is not None:
        with np.errstate(over='ignore'):
            return (1 / (1 + np.exp(-logits[0])) > about['threshold']).astype(np.uint8)
    return logits.argmax(0).astype(np.uint8)


def slides(about, fixed):
    """Return whether a window slides over images: as the config says, unless the file takes one size alone."""
    return 'crop_size' in about and fixed is None


def slide(run, x, crop_size, stride):
    """Return the mean logits ``(C, H, W)`` of overlapping windows of an image, as mmseg places them.

    Args:
        run (callable): the logits ``(1, C, h, w)`` of a window.
        x (np.ndarray): float32 ``(1, 3, H, W)``.
        crop_size, stride (sequence of int): height and width of a window, and of the steps between windows.
    """
    tops, lefts = (
        [max(min(start, side - crop), 0) for start in range(0, max(side - crop, 0) + step, step)]
        for side, crop, step in zip(x.shape[2:], crop_size, stride)
    )
    total, count = None, np.zeros(x.shape[2:], np.float32)
    for top, left in ((top, left) for top in tops for left in lefts):
        place = np.s_[..., top : top + crop_size[0], left : left + crop_size[1]]
        logits = run(x[place])[0]
        if total is None:
            total = np.zeros((len(logits), *count.shape), np.float32)
        total[place] += logits
        count[place] += 1
    return total / count


def load(path, threads=0, provider='CPUExecutionProvider'):
    """Load an ONNX file of export.py.

    Args:
        path (str or Path): the file.
        threads (int): threads of a call. Defaults to 0, one per core.
        provider (str): what runs the network, such as 'CUDAExecutionProvider' of the package onnxruntime-gpu.

    Returns:
        tuple: the session, the metadata, and the height and width of the only input or None: the arguments of
        :func:`segment`.
    """
    import onnxruntime

    if threads < 0:
        raise ValueError(f'threads must be at least 0; got {threads}')
    available = onnxruntime.get_available_providers()
    if provider not in available:
        raise ValueError(f'the provider must be one of {", ".join(available)}; got {provider}')
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=[provider])
        text = session.get_modelmeta().custom_metadata_map.get(KEY)
        shape = session.get_inputs()[0].shape[2:]
    except Exception as error:  # its errors have no common class
        raise RuntimeError(f'{path}: {error}') from error
    if session.get_providers()[0] != provider:  # onnxruntime only warns, and computes on the CPU
        raise RuntimeError(f'{provider} does not start here; the message above has the reason')
    if text is None:
        raise ValueError(f'{path} has no metadata {KEY!r}: export.py did not write it')
    fixed = tuple(shape) if all(isinstance(side, int) for side in shape) else None
    try:
        about = json.loads(text)
        not_described = about['not_described']
        if not not_described:
            check_metadata(about, fixed)
    except Exception as error:  # whatever the metadata lead to
        raise ValueError(f'{path}: its metadata {KEY!r} are damaged: {error!r}') from error
    if not_described:
        raise ValueError(f"{path}: the model's images need steps that this tool has not: {not_described}")
    return session, about, fixed


def check_metadata(about, fixed):
    """Prepare a small image, and make an index map, by the metadata of a file. Raises an error of any type."""
    for name, accepted in dict(channel_order=('RGB', 'BGR'), mode=('whole', 'slide')).items():
        if about[name] not in accepted:
            raise ValueError(f'{name} is {about[name]!r}')
    with np.errstate(all='ignore'):
        x, size = preprocess(np.full((2, 3, 3), 99, np.uint8), about, fixed)
    if not np.isfinite(x).all():
        raise ValueError(f'mean {about["mean"]} and std {about["std"]} are not those of pixels')
    if slides(about, fixed):
        (height, width), (down, right) = about['crop_size'], about['stride']
        if {*map(type, (height, width, down, right))} != {int} or not (0 < down <= height and 0 < right <= width):
            raise ValueError(f'windows of {height}×{width} with steps of {down} and {right} do not cover an image')
    colours = np.array(about['palette'], np.uint8)
    if colours.shape != (len(about['classes']), 3):
        raise ValueError(f'palette must have three numbers for each of {len(about["classes"])} classes')
    to_index_map(to_labels(np.zeros((len(colours), *x.shape[2:]), np.float32), size, 2, 3, about), about)


def save(content, path):
    """Write the content of a file aside and rename it, so that no half of a file remains."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f'.{path.stem}.{os.getpid()}.part{path.suffix}')
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def segment(session, about, fixed, image):
    """Segment an image. Threads may call this with one session.

    Args:
        session, about, fixed: what :func:`load` returns.
        image (str, Path, bytes or np.ndarray): a file, the content of one, or pixels, uint8 ``(H, W, 3)``, RGB.

    Returns:
        tuple: pixels, uint8 ``(H, W, 3)``, RGB; labels, uint8 ``(H, W)``, indices of ``about['classes']``.

    Example::

        model = load('model.onnx')
        pixels, labels = segment(*model, 'photo.jpg')
    """
    pixels = image if isinstance(image, np.ndarray) else read(image)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise ValueError(f'pixels must be uint8 (H, W, 3); got {pixels.dtype} {pixels.shape}')
    height, width = pixels.shape[:2]
    x, size = preprocess(pixels if about['channel_order'] == 'RGB' else pixels[..., ::-1], about, fixed)

    def run(window):
        (logits,) = session.run(None, {session.get_inputs()[0].name: np.ascontiguousarray(window)})
        return logits

    try:
        logits = slide(run, x, about['crop_size'], about['stride'])[None] if slides(about, fixed) else run(x)
    except Exception as error:  # its errors have no common class
        name = image if isinstance(image, str | Path) else 'the image'
        raise RuntimeError(f'{name}: {error}') from error
    expected = len(about['classes']) if about['threshold'] is None else 1
    if logits.shape[1:2] != (expected,):
        raise RuntimeError(f'the logits of the network are {logits.shape}, which do not fit {expected} classes')
    return pixels, to_labels(logits[0], size, height, width, about)


def to_index_map(labels, about):
    """Return the PNG file of labels, with the palette of the metadata, as image_demo.py writes it."""
    image, text = Image.fromarray(labels), PngInfo()
    image.putpalette(np.array(about['palette'], np.uint8).tobytes())
    text.add_text('Labels', 'class indices from 0')  # so that reduce_zero_label does not shift them
    return to_png(image, pnginfo=text)


def to_png(image, **options):
    """Return the PNG file of a Pillow image."""
    file = io.BytesIO()
    image.save(file, 'PNG', **options)
    return file.getvalue()


def add_session_options(parser):
    parser.add_argument('--threads', type=int, default=0, help='threads of a call; default: one per core')
    parser.add_argument(
        '--provider', default='CPUExecutionProvider', help='such as CUDAExecutionProvider; default: %(default)s'
    )


def main():
    parser = argparse.ArgumentParser(description='Segment images with an ONNX file')
    parser.add_argument('model', type=Path, help='ONNX file of export.py')
    parser.add_argument('image', type=Path, nargs='+', help='image files')
    parser.add_argument('--out-dir', type=Path, required=True, help='folder for pred/<name>.png and vis/<name>.png')
    parser.add_argument(
        '--opacity', type=float, default=0.5, help='of the colours over the image, 0 to 1; default: 0.5'
    )
    add_session_options(parser)
    args = parser.parse_args()
    if not 0 <= args.opacity <= 1:
        parser.error(f'--opacity must be from 0 to 1; got {args.opacity}')
    names = [path.stem for path in args.image]
    if len(set(names)) < len(names):
        parser.error(f'images must have distinct names, without suffix and folder; got {" ".join(names)}')
    missing = [str(path) for path in (args.model, *args.image) if not path.is_file()]
    if missing:
        raise FileNotFoundError(f'no such file: {" ".join(missing)}')
    outputs = {(args.out_dir / folder / f'{name}.png').resolve() for folder in ('pred', 'vis') for name in names}
    replaced = [str(path) for path in args.image if path.resolve() in outputs]
    if replaced:
        parser.error(f'--out-dir: the results would replace images: {" ".join(replaced)}')
    session, about, fixed = load(args.model, args.threads, args.provider)
    if about['mode'] == 'slide' and not slides(about, fixed):
        reason = 'the file takes one size' if fixed else 'the file is of an earlier version of export.py'
        print(f'the config slides a window over an image; this passes the whole image, since {reason}', file=sys.stderr)
    palette = np.array(about['palette'], np.uint8)
    faults = []
    for path in args.image:
        try:
            pixels, labels = segment(session, about, fixed, path)
        except RuntimeError as error:  # of the network; the other images are segmented
            faults.append(f'{args.model}: {error}')
            continue
        except (OSError, ValueError) as error:
            faults.append(str(error))
            continue
        save(to_index_map(labels, about), args.out_dir / 'pred' / f'{path.stem}.png')
        overlay = pixels * np.float32(1 - args.opacity) + palette[labels] * np.float32(args.opacity)
        save(to_png(Image.fromarray(np.rint(overlay).astype(np.uint8))), args.out_dir / 'vis' / f'{path.stem}.png')
        print(args.out_dir / 'pred' / f'{path.stem}.png')
    if faults:
        raise RuntimeError('\n'.join(faults))


if __name__ == '__main__':
    try:
        main()
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        sys.exit(f'{Path(sys.argv[0]).name}: error: {error}')
