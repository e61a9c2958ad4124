"""Write a web page to explore what a segmentation model attends to, from wherever one points in an image.

    python tools/visualization/attention_explorer.py CONFIG CHECKPOINT IMAGE --out FILE.html

One file that needs no network and no server: the image, the prediction, and the attention of a grid of queries by
content alone, by position alone, and bilateral, in each layer and head.
"""

import argparse
from pathlib import Path
from pickle import UnpicklingError

from mmengine.config import Config, DictAction

from mmattn.segmentation.face_parsing.inferencer import FaceParsingInferencer
from mmattn.visualization import attention_explorer, attention_layers, attention_runs, read_image


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description='Write a web page to explore attention maps')
    parser.add_argument('config', help='path of the config')
    parser.add_argument('checkpoint', help='path or URL of the checkpoint')
    parser.add_argument('image', help='path of the image')
    parser.add_argument('--out', type=Path, default=Path('attention.html'), help='file to write; default: %(default)s')
    parser.add_argument(
        '--grid',
        type=int,
        default=24,
        help="queries along the image's longer side, at most: fewer where the page would be too large; "
        'default: %(default)s',
    )
    parser.add_argument('--max-size', type=float, default=4, help='of the page, in MiB; default: %(default)s')
    parser.add_argument('--layer', help='name of the only attention layer to show; default: all')
    parser.add_argument('--device', help='such as cpu or cuda:1; default: a GPU if there is one')
    parser.add_argument(
        '--cfg-options', nargs='+', action=DictAction, help='override settings of the config: key=value …'
    )
    return parser.parse_args()


def main() -> None:
    """Compute the maps and write the page."""
    args = parse_args()
    try:
        image = read_image(args.image)
        cfg = Config.fromfile(args.config)
        cfg.merge_from_dict(args.cfg_options or {})
        if 'decode_head' not in cfg.get('model', {}):
            raise ValueError(f'{args.config} is of no segmentation model: it has no model.decode_head')
        inferencer = FaceParsingInferencer(cfg, args.checkpoint, device=args.device)
        attention_layers(inferencer.model, args.layer)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        data = next(inferencer.preprocess([args.image]))
        (sample,) = inferencer.forward(data)
        page = attention_explorer(
            image,
            sample.pred_sem_seg.data[0].cpu().numpy(),
            **inferencer.model.dataset_meta,
            runs=attention_runs(inferencer.model, data, args.layer),
            title=f'{Path(args.config).stem} · {Path(args.image).name}',
            grid=args.grid,
            max_bytes=int(args.max_size * 2**20),
            show_progress=True,
        )
        aside = args.out.with_name(f'{args.out.name}.part')
        aside.write_text(page, encoding='utf-8')
        aside.replace(args.out)
    except (EOFError, UnpicklingError):
        raise SystemExit(f'{args.checkpoint} is no checkpoint, or a truncated one') from None
    except (OSError, RuntimeError, ValueError) as error:
        raise SystemExit(f'{error}') from None
    print(f'{args.out}: {args.out.stat().st_size / 2**20:.2f} MiB')


if __name__ == '__main__':
    main()
