"""Draw the images or clips of a config with their labels: training samples after the pipeline, others as they are.

python tools/analysis_tools/browse_dataset.py CONFIG --output-dir DIR [--split val] [--number 20]
"""

import argparse
from pathlib import Path
from typing import Any

import mmcv
import numpy as np
from mmengine.registry import init_default_scope
from mmseg.registry import DATASETS, VISUALIZERS
from rich.progress import track

from mmattn.engine import add_config_options, data_paths, load_config
from mmattn.utils.channels import as_picture
from mmattn.utils.command import run
from mmattn.utils.component_type import dicts, type_name
from mmattn.utils.devices import check_display
from mmattn.utils.files import check_not_input, check_writable
from mmattn.video.masks import draw_overlay
from mmattn.visualization import image_loader, read_image


def clip_picture(item: dict) -> np.ndarray:
    """Return the frames of a clip in a row, with its objects drawn over them: uint8 ``(H, W, 3)``, BGR."""
    frames, masks = item['inputs'].permute(0, 2, 3, 1).numpy(), item['data_samples'].gt_masks.data.numpy()
    return np.concatenate([draw_overlay(frame, mask, 0.5) for frame, mask in zip(frames, masks)], 1)


def sample_image(item: dict, split: str, loader: Any, all_channels: bool = False) -> np.ndarray:
    """Return the image that the labels of an item fit: uint8 ``(H, W, 3)``, RGB.

    For evaluation, pipelines load the labels after images are resized. They then fit the file, as the data set's
    ``loader`` reads it. With ``all_channels``, the item has those of ``LoadChannels``, otherwise BGR.
    """
    sample, pixels = item['data_samples'], item['inputs'].permute(1, 2, 0).numpy()
    pixels = as_picture(pixels) if all_channels else pixels[..., ::-1]
    if split == 'train':
        return pixels
    image = read_image(sample.img_path, loader=loader)
    labels = sample.get('gt_sem_seg')
    return image if labels is None or tuple(labels.shape) == image.shape[:2] else pixels


def main() -> None:
    parser = argparse.ArgumentParser(description='Browse a data set')
    parser.add_argument('config', help='path of the config')
    parser.add_argument('--output-dir', type=Path, help='folder for the pictures')
    parser.add_argument('--split', choices=['train', 'val', 'test'], default='train', help='default: train')
    parser.add_argument('--number', type=int, help='number of images, from the first; default: all')
    parser.add_argument('--not-show', action='store_true', help='do not open a window')
    parser.add_argument('--show-interval', type=float, default=2, help='seconds that each picture is shown; default: 2')
    add_config_options(parser)
    args = parser.parse_args()
    if args.number is not None and args.number < 1:
        parser.error(f'--number must be at least 1; got {args.number}')
    if args.not_show and args.output_dir is None:
        parser.error('--not-show requires --output-dir')
    if args.output_dir is None:
        check_display('a run without --output-dir', '--output-dir')
    else:
        check_writable(args.output_dir)
    cfg = load_config(args.config, args.cfg_options)
    if args.output_dir is not None:
        check_not_input('--output-dir', args.output_dir, data_paths(cfg))
    init_default_scope(cfg.get('default_scope', 'mmseg'))
    dataset = DATASETS.build(cfg[f'{args.split}_dataloader'].dataset)
    all_channels = any(type_name(part) == 'LoadChannels' for part in dicts(cfg[f'{args.split}_dataloader']))
    loader = image_loader(dataset)
    visualizer = VISUALIZERS.build(cfg.visualizer)
    visualizer.dataset_meta = dataset.metainfo
    for i in track(range(len(dataset) if args.number is None else min(args.number, len(dataset)))):
        item = dataset[i]
        if 'gt_masks' in item['data_samples']:
            picture, name = clip_picture(item), item['data_samples'].clip
            if args.output_dir is not None:
                mmcv.imwrite(picture, str(args.output_dir / f'{i:05}_{name}.png'))
            if not args.not_show:
                visualizer.show(picture[..., ::-1], name, args.show_interval)
            continue
        if 'inputs' not in item:
            parser.error(f'clips of --split {args.split} are read by the model, frame by frame; use --split train')
        name = Path(item['data_samples'].img_path).stem
        instances = item['data_samples'].get('gt_instances')
        if instances is not None and hasattr(instances.bboxes, 'tensor'):
            instances.bboxes = instances.bboxes.tensor  # mmdet's visualizer requires tensors
        visualizer.add_datasample(
            name,
            # contiguous, because mmseg 1.2.2 passes an array with the same strides to OpenCV to draw on
            np.ascontiguousarray(sample_image(item, args.split, loader, all_channels)),
            item['data_samples'],
            draw_pred=False,
            show=not args.not_show,
            wait_time=args.show_interval,
            out_file=None if args.output_dir is None else str(args.output_dir / f'{i:05}_{name}.png'),
        )


if __name__ == '__main__':
    run(main)
