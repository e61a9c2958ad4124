"""Draw what a model attends to.

    python tools/visualization/attention_maps.py CONFIG CHECKPOINT IMAGE --query x,y [--query x,y …] [--out FILE]
    python tools/visualization/attention_maps.py CONFIG CHECKPOINT CLIP --mask FIRST.png --query x,y@frame
    python tools/visualization/attention_maps.py CONFIG CHECKPOINT

An image: each query has a row, the image with the query as a red dot, and its attention by content, by position, and
bilateral, overlaid on the image, as in Fig. 3.4 of the bilateral-attention thesis. For a recurrent layer, the last pass
is drawn. --kinds E1 E2 E3 E4 draws single terms of Transformer attention.

A clip, a video file or a folder of frames, and the mask of the objects in its first frame, for an SST: the followed
objects, the attention of a pixel of one frame in all frames, and the positions that reach it through 1, 2 … layers.

No image: the geometric weights of a captioning model with geometry='content_independent' (NG-SAN, Fig. 3 and 4).

Args:
    image: path of the image; with --mask, of the video or folder of frames
    query (x,y): pixel of the image, from the top left; may be repeated; in a clip one pixel, x,y@frame
    mask: mask of a clip's first frame, whose values are the ids of the objects
    frames: number of frames of a clip that the model processes, at even distances, including the first and that of the
        query; default: 6
    kinds (KIND): kinds of weights: content, position and bilateral; a term of Transformer attention, E1 to E4; local
        and strided in strided attention; default: content, position and bilateral, or what the layer has
    out: file to write, in the format of its suffix
    threshold: hide weights below this share of a map's largest
    box (x0,y0,x1,y1): mark an area on the maps of an image by a dashed line, in pixels; may be repeated
    layer: name of the attention layer in the model; default: the last one
"""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import MODELS, init_default_scope
from PIL import Image
from torch import nn

from mmattn._compat import load_weights
from mmattn.engine import ModelArguments, check_checkpoint, inference_pipeline, load_config, read_checkpoint
from mmattn.utils.arguments import UsageError, command
from mmattn.utils.command import run
from mmattn.utils.component_type import check_model
from mmattn.utils.devices import check_device
from mmattn.utils.files import atomic_write, check_not_input, check_writable, input_files
from mmattn.visualization import attention_layers, attention_maps, draw_attention_maps, image_loader, read_image


def parse_box(text: str) -> tuple[int, ...]:
    """Parse the edges of an area, ``x0,y0,x1,y1``: left, top, right, bottom."""
    left, top, right, bottom = box = tuple(map(int, text.split(',')))
    if not (0 <= left < right and 0 <= top < bottom):
        raise ValueError
    return box


@dataclass
class Arguments(ModelArguments):
    """What the command is given."""

    image: str | None = None
    _: KW_ONLY
    query: Annotated[list[str] | None, dict(action='append', nargs=None)] = None
    mask: Path | None = None
    frames: int | None = None
    kinds: list[str] | None = None
    out: Path = Path('attention_maps.png')
    threshold: float = 0.02
    box: Annotated[list | None, dict(action='append', nargs=None, type=parse_box)] = None
    layer: str | None = None

    def __post_init__(self) -> None:
        if self.image is None and (self.query or self.mask or self.kinds):
            raise UsageError('--query, --mask and --kinds require an image or a clip')
        if self.image is not None and not self.query:
            raise UsageError('an image or a clip requires --query')
        if self.mask is not None and len(self.query) > 1:
            raise UsageError(f'a clip has one --query; got {len(self.query)}')
        if self.frames is not None and self.mask is None:
            raise UsageError('--frames requires a clip, with --mask')
        self.frames = 6 if self.frames is None else self.frames
        if self.frames < 2:
            raise UsageError(f'--frames must be at least 2; got {self.frames}')


def load_model(cfg: Config, checkpoint: str, device: torch.device) -> nn.Module:
    """Build the config's model for inference, with the weights of a checkpoint, which must fit."""
    model = MODELS.build(cfg.model)
    load_weights(model, read_checkpoint(checkpoint), checkpoint)
    return model.to(device).eval()


def check_suffix(path: Path) -> None:
    """Raise a ValueError if Pillow cannot write a format of this suffix."""
    suffixes = sorted(suffix for suffix, form in Image.registered_extensions().items() if form in Image.SAVE)
    if path.suffix.lower() not in suffixes:
        raise ValueError(f'--out must have a suffix of an image format ({", ".join(suffixes)}); got {path}')


def write(picture: Image.Image, path: Path) -> None:
    """Write a picture in the format of its suffix. A PNG is reduced to 256 colours, a third of the size."""
    options: dict[str, bool] = {}
    if path.suffix.lower() == '.png':
        picture = picture.quantize(method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        options = dict(optimize=True)
    with atomic_write(path) as temporary:
        picture.save(temporary, **options)


def relative(query: str, width: int, height: int) -> tuple[float, float]:
    """Return the centre of pixel 'x,y' of an image, relative to the image's width and height."""
    try:
        x, y = map(int, query.split(','))
    except ValueError:
        raise SystemExit(f'--query must be x,y in pixels; got {query}') from None
    if not (0 <= x < width and 0 <= y < height):
        raise SystemExit(f'--query {query} is outside the image, which has {width} columns and {height} rows')
    return (x + 0.5) / width, (y + 0.5) / height


def draw_image(args: Arguments, cfg: Config, device: torch.device) -> np.ndarray:
    pipeline = inference_pipeline(cfg)
    image = read_image(args.image, loader=image_loader(pipeline))
    height, width = image.shape[:2]
    points = [relative(query, width, height) for query in args.query]
    model = load_model(cfg, args.checkpoint, device)
    check_layers(args, model)
    data = pseudo_collate([pipeline(dict(img_path=args.image))])
    maps = attention_maps(model, data, points, args.layer, args.kinds)[-1]
    return draw_attention_maps(image, points, maps, args.threshold, args.box or [])


def draw_clip(args: Arguments, cfg: Config, device: torch.device) -> np.ndarray:
    from mmattn.video import SST, Frame
    from mmattn.video.attention_pictures import clip_attention, draw_clip_attention
    from mmattn.video.clip_readers import FrameFolder, VideoFile
    from mmattn.video.given_masks import read_masks

    check_model(cfg, SST, 'an SST')
    path = Path(args.image)
    clip = FrameFolder(path) if path.is_dir() else VideoFile(path)
    pixel, _, digits = args.query[0].partition('@')
    if not digits.isdecimal():
        raise ValueError(f'--query must be x,y@frame for a clip; got {args.query[0]}')
    at = clip.find_number(digits)
    point = relative(pixel, *clip.size[::-1])
    length = sum(1 for _ in clip.read())  # a video may end early
    if at >= length:
        raise ValueError(f'{path}: only {length} frames can be decoded; got --query {args.query[0]}')
    if length < 2:
        raise ValueError(f'{path}: a clip must have at least two frames; got {length}')
    numbers = select_frames(length, at, args.frames)
    masks = read_masks({0: (args.mask, True)}, clip, single_object=False)
    model = load_model(cfg, args.checkpoint, device)
    check_layers(args, model)
    frames = [Frame(number, image, masks.get(number)) for number, image in clip.read() if number in numbers]
    query = numbers.index(at), *point
    return draw_clip_attention(
        frames, query, clip_attention(model, frames, query, args.layer, args.kinds), args.threshold
    )


def select_frames(length: int, at: int, count: int) -> list[int]:
    """Select frames at even distances: the first, frame ``at``, and others, up to ``count``."""
    numbers = [round(i * (length - 1) / (count - 1)) for i in range(count)]
    if at not in numbers:  # in place of the nearest one, which is not the first frame
        nearest = min(range(1, count), key=lambda i: abs(numbers[i] - at))
        numbers[nearest] = at
    return sorted(set(numbers))


def draw_geometry(args: Arguments, cfg: Config, device: torch.device) -> np.ndarray:
    from mmattn.language.captioning import CaptionInferencer
    from mmattn.language.regions.geometry_pictures import draw_geometric_weights, geometry_layers

    if 'decode_head' in cfg.model or 'backbone' in cfg.model:
        raise ValueError(f'{args.config} has a model of images or clips: give an IMAGE or a clip, and --query')
    model = CaptionInferencer(cfg, args.checkpoint, str(device)).model
    return draw_geometric_weights(geometry_layers(model, args.layer))


def check_layers(args: Arguments, model: nn.Module) -> None:
    try:
        attention_layers(model, args.layer, args.kinds, clips=args.mask is not None)
    except ValueError as error:
        raise SystemExit(f'{args.config}: {error}') from None


@command
def main(args: Arguments) -> None:
    check_suffix(args.out)
    if not 0 <= args.threshold <= 1:
        raise ValueError(f'--threshold must be from 0 to 1; got {args.threshold}')
    check_not_input('--out', args.out, input_files(args))
    check_writable(args.out.parent)
    check_checkpoint(args.checkpoint)
    device = check_device(args.device)
    cfg = load_config(args.config, args.cfg_options)
    init_default_scope(cfg.get('default_scope', 'mmseg'))
    draw = draw_geometry if args.image is None else draw_image if args.mask is None else draw_clip
    write(Image.fromarray(draw(args, cfg, device)), args.out)
    print(args.out)


if __name__ == '__main__':
    run(main)
