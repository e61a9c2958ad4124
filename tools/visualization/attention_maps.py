"""Draw what a model attends to from points of an image, as in Fig. 3.4 of the bilateral-attention thesis.

    python tools/visualization/attention_maps.py CONFIG CHECKPOINT IMAGE --query x,y [--query x,y …] [--out FILE.png]

A row a query: the image with the query as a red dot, then its attention by content alone, by position alone, and
bilateral, laid over the image. Of a layer that runs several times, the last pass is drawn.
"""

import argparse
from pathlib import Path

import torch
from mmengine.config import Config, DictAction
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import load_checkpoint
from PIL import Image
from torch import nn

import mmattn.engine  # noqa: F401  (what checkpoints hold, and `_base_ = 'mmattn::…'`)
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
        help='pixel of the image, from the left and from the top; may be given several times',
    )
    parser.add_argument(
        '--out', type=Path, default=Path('attention_maps.png'), help='file to write; default: %(default)s'
    )
    parser.add_argument(
        '--threshold',
        type=float,
        default=0.02,
        help="hide weights under this share of a map's largest; default: %(default)s",
    )
    parser.add_argument('--layer', help='name of the attention layer in the model; default: the last one')
    parser.add_argument(
        '--device', default='cuda' if torch.cuda.is_available() else 'cpu', help='default: %(default)s here'
    )
    parser.add_argument(
        '--cfg-options', nargs='+', action=DictAction, help='override settings of the config: key=value …'
    )
    return parser.parse_args()


def load_model(cfg: Config, checkpoint: str, device: str) -> nn.Module:
    """Build the config's model for inference, with the weights of a checkpoint."""
    init_default_scope(cfg.get('default_scope', 'mmseg'))
    model = MODELS.build(cfg.model)
    load_checkpoint(model, checkpoint, map_location='cpu')
    return model.to(device).eval()


def relative(query: str, width: int, height: int) -> tuple[float, float]:
    """Return the centre of pixel 'x,y' of an image, relative to its size."""
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
    cfg = Config.fromfile(args.config)
    cfg.merge_from_dict(args.cfg_options or {})
    try:
        image = read_image(args.image)
    except (OSError, ValueError) as error:
        raise SystemExit(f'{error}') from None
    height, width = image.shape[:2]
    points = [relative(query, width, height) for query in args.query]
    model = load_model(cfg, args.checkpoint, args.device)
    try:
        attention_layers(model, args.layer)
    except ValueError as error:
        raise SystemExit(f'{args.config}: {error}') from None
    pipeline = Compose([t for t in cfg.test_dataloader.dataset.pipeline if 'Annotations' not in t['type']])
    data = pseudo_collate([pipeline(dict(img_path=args.image))])
    maps = attention_maps(model, data, points, args.layer)[-1]
    picture = Image.fromarray(draw_attention_maps(image, points, maps, args.threshold))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    aside = args.out.with_name(f'{args.out.name}.part')
    # 256 colours: a third of the size
    picture.quantize(method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(aside, 'PNG', optimize=True)
    aside.replace(args.out)
    print(args.out)


if __name__ == '__main__':
    main()
