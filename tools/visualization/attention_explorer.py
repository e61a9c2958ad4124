"""Write an interactive web page with the attention maps of a segmentation model for an image.

    python tools/visualization/attention_explorer.py CONFIG CHECKPOINT IMAGE --out FILE.html

The page is one file that requires no network and no server. It contains the image, the prediction, and the attention of
a grid of queries by content, by position, and bilateral, for each layer and head.

Args:
    image: path of the image
    out: file to write
    grid: maximum number of queries along the image's longer side; reduced if the page would exceed --max-size
    max_size: maximum size of the page in MiB
    layer: name of the only attention layer to show; default: all
"""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from mmattn.engine import ModelArguments, check_checkpoint, load_config
from mmattn.utils.arguments import command
from mmattn.utils.command import run
from mmattn.utils.devices import check_device
from mmattn.utils.files import check_not_input, check_writable, input_files, write_text
from mmattn.visualization import attention_explorer, attention_layers, attention_runs


@dataclass
class Arguments(ModelArguments):
    """What the command is given."""

    image: str
    _: KW_ONLY
    out: Path = Path('attention.html')
    grid: int = 24
    max_size: float = 4
    layer: str | None = None


@command
def main(args: Arguments) -> None:
    from mmattn.segmentation.inferencer import SegmentationInferencer  # late: mmseg prints at import

    check_not_input('--out', args.out, input_files(args))
    check_writable(args.out.parent)
    check_checkpoint(args.checkpoint)
    device = check_device(args.device)
    cfg = load_config(args.config, args.cfg_options)
    if 'decode_head' not in cfg.get('model', {}):
        raise ValueError(f'{args.config} is not the config of a segmentation model: it has no model.decode_head')
    inferencer = SegmentationInferencer(cfg, args.checkpoint, device=str(device))
    image = inferencer.read_image(args.image)
    attention_layers(inferencer.model, args.layer)
    data = next(inferencer.preprocess([dict(img_path=args.image)]))
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
    write_text(args.out, page)
    print(f'{args.out}: {args.out.stat().st_size / 2**20:.2f} MiB')


if __name__ == '__main__':
    run(main)
