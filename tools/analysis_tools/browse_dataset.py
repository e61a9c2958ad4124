"""Draw a config's training images with their labels, as the pipeline gives them to the model.

    python tools/analysis_tools/browse_dataset.py CONFIG --output-dir DIR [--split val] [--number 20]
"""
import argparse
from pathlib import Path

from mmengine.config import Config, DictAction
from mmengine.registry import init_default_scope
from mmseg.registry import DATASETS, VISUALIZERS
from rich.progress import track

import mmattn.registry  # noqa: F401


def main() -> None:
    """Write or show one picture an image."""
    parser = argparse.ArgumentParser(description='Browse a data set')
    parser.add_argument('config', help='path of the config')
    parser.add_argument('--output-dir', type=Path, help='folder for the pictures')
    parser.add_argument('--split', choices=['train', 'val', 'test'], default='train', help='default: train')
    parser.add_argument('--number', type=int, help='the first so many images; default: all')
    parser.add_argument('--not-show', action='store_true', help='open no window')
    parser.add_argument('--show-interval', type=float, default=2, help='seconds that each picture is shown; default: 2')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, help='override settings: key=value …')
    args = parser.parse_args()
    cfg = Config.fromfile(args.config)
    if args.cfg_options is not None:
        cfg.merge_from_dict(args.cfg_options)
    init_default_scope(cfg.get('default_scope', 'mmseg'))
    dataset = DATASETS.build(cfg[f'{args.split}_dataloader'].dataset)
    visualizer = VISUALIZERS.build(cfg.visualizer)
    visualizer.dataset_meta = dataset.metainfo
    for i in track(range(len(dataset) if args.number is None else min(args.number, len(dataset)))):
        item = dataset[i]
        name = Path(item['data_samples'].img_path).stem
        instances = item['data_samples'].get('gt_instances')
        if instances is not None and hasattr(instances.bboxes, 'tensor'):
            instances.bboxes = instances.bboxes.tensor  # mmdet's visualizer draws tensors alone
        visualizer.add_datasample(
            name,
            item['inputs'].permute(1, 2, 0).numpy()[..., ::-1],  # BGR to RGB
            item['data_samples'],
            draw_pred=False,
            show=not args.not_show,
            wait_time=args.show_interval,
            out_file=None if args.output_dir is None else str(args.output_dir / f'{i:05}_{name}.png'))


if __name__ == '__main__':
    main()
