"""Draw the attention maps of a model for pixels of an image, as in Fig. 3.4 of the bilateral-attention thesis.

    python tools/visualization/attention_maps.py CONFIG CHECKPOINT IMAGE --query x,y [--query x,y …] [--out FILE]

Each query has a row: the image with the query as a red dot, and its attention by content, by position, and bilateral,
overlaid on the image. For a recurrent layer, the last pass is drawn.
"""

import argparse
from pathlib import Path

from mmattn.utils.command import run

import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import load_checkpoint
from PIL import Image
from torch import nn

from mmattn.engine import add_config_options, check_checkpoint, inference_pipeline, load_config
from mmattn.utils.devices import check_device
from mmattn.utils.files import atomic_write, check_not_input, check_writable, input_files
from mmattn.visualization import attention_layers, attention_maps, draw_attention_maps, read_image


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description='Draw attention maps')
    parser.add_argument('config', help='path of the config')
    parser.add_argument('checkpoint', help='path or URL of the checkpoint')
    parser.add_argument('image', help='path of the image')
    parser.add_argument(
        '--query',
        action='append',
        required=True,
        metavar='x,y',
        help='pixel of the image, from the top left; may be repeated',
    )
    parser.add_argument(
        '--out',
        type=Path,
        default=Path('attention_maps.png'),
        help='file to write, in the format of its suffix; default: %(default)s',
    )
    parser.add_argument(
        '--threshold',
        type=float,
        default=0.02,
        help="hide weights below this share of a map's largest; default: %(default)s",
    )
    parser.add_argument('--layer', help='name of the attention layer in the model; default: the last one')
    parser.add_argument('--device', help='such as cpu or cuda:1; default: a GPU if one is available')
    add_config_options(parser)
    return parser.parse_args()


def load_model(cfg: Config, checkpoint: str, device: torch.device) -> nn.Module:
    """Build the config's model for inference, with the weights of a checkpoint, which must fit."""
    init_default_scope(cfg.get('default_scope', 'mmseg'))
    model = MODELS.build(cfg.model)
    load_checkpoint(model, checkpoint, map_location='cpu', strict=True)
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


def main() -> None:
    """Draw and write the figure."""
    args = parse_args()
    check_suffix(args.out)
    if not 0 <= args.threshold <= 1:
        raise ValueError(f'--threshold must be from 0 to 1; got {args.threshold}')
    check_not_input('--out', args.out, input_files(args))
    check_writable(args.out.parent)
    check_checkpoint(args.checkpoint)
    device = check_device(args.device)
    cfg = load_config(args.config, args.cfg_options)
    image = read_image(args.image)
    height, width = image.shape[:2]
    points = [relative(query, width, height) for query in args.query]
    model = load_model(cfg, args.checkpoint, device)
    try:
        attention_layers(model, args.layer)
    except ValueError as error:
        raise SystemExit(f'{args.config}: {error}') from None
    data = pseudo_collate([inference_pipeline(cfg)(dict(img_path=args.image))])
    maps = attention_maps(model, data, points, args.layer)[-1]
    picture = Image.fromarray(draw_attention_maps(image, points, maps, args.threshold))
    write(picture, args.out)
    print(args.out)


if __name__ == '__main__':
    run(main)
