"""Segment images with an ONNX file of export.py: write an index map with its palette for each.

    python run_onnx.py MODEL.onnx IMAGE [IMAGE …] --out-dir DIR    # DIR/pred/*.png

It requires only onnxruntime, numpy and Pillow: copy it with the model. It preprocesses images as in the config.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngInfo


def load(path, threads=0):
    """Return the session of an ONNX file and its metadata: the first arguments of :func:`segment`."""
    import onnxruntime

    options, providers = onnxruntime.SessionOptions(), onnxruntime.get_available_providers()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    about = json.loads(session.get_modelmeta().custom_metadata_map['mmattn'])
    if about['not_described']:
        raise ValueError(f"{path}: the model's images need steps that this tool has not: {about['not_described']}")
    return session, about


def read(file):
    """Return the pixels of a path or an open file, uint8 ``(H, W, 3)`` in RGB, turned as EXIF says."""
    with Image.open(file, formats=('JPEG', 'PNG', 'WEBP', 'BMP', 'TIFF')) as image:  # Pillow would open 40 others
        if image.mode.startswith(('I', 'F')):  # which Pillow would clip at 255
            raise ValueError(f'{file}: images must have 8 bits per channel; this one has more')
        return np.asarray(ImageOps.exif_transpose(image).convert('RGB'))


def resize(x, height, width, align_corners=False):
    """Resize the last two axes by bilinear interpolation, as PyTorch and OpenCV do: without smoothing."""
    for axis, length in ((-2, height), (-1, width)):
        size = x.shape[axis]
        if align_corners:
            at = np.arange(length) * ((size - 1) / max(length - 1, 1))
        else:
            at = ((np.arange(length) + 0.5) * (size / length) - 0.5).clip(0, size - 1)
        first = at.astype(int)
        share = (at - first).astype(np.float32).reshape(-1, *[1] * (-1 - axis))
        x = x.take(first, axis) * (1 - share) + x.take(np.minimum(first + 1, size - 1), axis) * share
    return x


def target_size(height, width, settings):
    """Return the size to which an image is scaled, as by mmcv."""
    # A scale prevails over factors, and the product with factors is rounded before it is fitted.
    scale = settings['scale'] or [int(side * f + 0.5) for side, f in zip((width, height), settings['scale_factor'])]
    if not settings['keep_ratio']:
        return tuple(scale[::-1])
    factor = min(max(scale) / max(height, width), min(scale) / min(height, width))
    return int(height * factor + 0.5), int(width * factor + 0.5)


def preprocess(pixels, about):
    """Return the input of the network, float32 ``(1, 3, H', W')``, and its height and width before padding."""
    x = (pixels if about['channel_order'] == 'RGB' else pixels[..., ::-1]).transpose(2, 0, 1).astype(np.float32)
    size = target_size(*x.shape[1:], about['resize']) if about['resize'] else x.shape[1:]
    mean, std = (np.array(about[key], np.float32)[:, None, None] for key in ('mean', 'std'))
    x = (np.rint(resize(x, *size)) - mean) / std
    padding = [(0, -side % about['size_divisor']) for side in size]
    return np.pad(x, [(0, 0), *padding], constant_values=about['pad_value'])[None], size


def run_windows(session, about, x):
    """Return the mean logits ``(C, H, W)`` of overlapping windows, as mmseg places them, or of the whole image."""
    sides, name = x.shape[2:], session.get_inputs()[0].name
    crops, steps = about.get('crop_size', sides), about.get('stride', sides)
    tops, lefts = (
        [max(min(start, side - crop), 0) for start in range(0, max(side - crop, 0) + step, step)]
        for side, crop, step in zip(sides, crops, steps)
    )
    channels = len(about['classes']) if about['threshold'] is None else 1
    total, count = np.zeros((channels, *sides), np.float32), np.zeros(sides, np.float32)
    for top, left in ((top, left) for top in tops for left in lefts):
        place = np.s_[..., top : top + crops[0], left : left + crops[1]]
        total[place] += session.run(None, {name: np.ascontiguousarray(x[place])})[0][0]
        count[place] += 1
    return total / count


def segment(session, about, pixels):
    """Return the labels of an image, uint8 ``(H, W)``, from its pixels as :func:`read` returns them."""
    x, (height, width) = preprocess(pixels, about)
    logits = run_windows(session, about, x)[:, :height, :width]
    logits = resize(logits, *pixels.shape[:2], about['align_corners'])
    threshold = about['threshold']  # of the sigmoid of a single logit
    labels = logits.argmax(0) if threshold is None else logits[0] > np.log(threshold / (1 - threshold))
    return labels.astype(np.uint8)


def main():
    parser = argparse.ArgumentParser(description='Segment images with an ONNX file')
    parser.add_argument('model', type=Path, help='ONNX file of export.py')
    parser.add_argument('image', type=Path, nargs='+', help='image files')
    parser.add_argument('--out-dir', type=Path, required=True, help='folder for pred/<name>.png')
    parser.add_argument('--threads', type=int, default=0, help='threads of a call; default: one per core')
    args = parser.parse_args()
    if len({path.stem for path in args.image}) < len(args.image):
        parser.error('images must have distinct names, without suffix and folder')
    session, about = load(args.model, args.threads)
    text = PngInfo()
    text.add_text('Labels', 'class indices from 0')  # so that reduce_zero_label does not shift them
    (args.out_dir / 'pred').mkdir(parents=True, exist_ok=True)
    for path in args.image:
        print(path)
        labels = Image.fromarray(segment(session, about, read(path)))
        labels.putpalette(np.ravel(about['palette']).tolist())
        labels.save(args.out_dir / 'pred' / f'{path.stem}.png', pnginfo=text)


if __name__ == '__main__':
    main()
