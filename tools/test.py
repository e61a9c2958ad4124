"""Test a checkpoint: ``python tools/test.py CONFIG CHECKPOINT [--show-dir DIR] [--tta] [--amp] [--out DIR] …``."""

import argparse
from inspect import signature
from pathlib import Path

from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.logging import print_log
from mmengine.registry import METRICS, RUNNERS
from mmengine.runner import Runner

from mmattn.engine import (
    add_amp,
    add_channels_last,
    add_check,
    add_common_arguments,
    add_fuse_conv_bn,
    check_checkpoint,
    config_from,
    data_paths,
    enable_test_amp,
    fuse_at_first_call,
    leave_process_group,
    log_operators,
    prepare_for_cpu,
    use_channels_last,
)
from mmattn.utils.command import run
from mmattn.utils.component_type import component_class, inner_data_sets, type_name
from mmattn.utils.devices import check_display
from mmattn.utils.files import check_not_input, check_writable
from mmattn.visualization import PictureHook

LABEL_MAPS = 'IoUMetric', 'ForegroundIoUMetric', 'FaceParsingMetric'  # write one per image


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Test (and evaluate) a model')
    parser.add_argument('config', help='path of the config')
    parser.add_argument('checkpoint', help='path or URL of the checkpoint')
    parser.add_argument('--out', help='folder for predictions, such as label maps, captions and answers')
    parser.add_argument('--show', action='store_true', help='show predictions in a window')
    parser.add_argument('--show-dir', help='folder for pictures of the predictions, <name>.png')
    parser.add_argument('--wait-time', type=float, default=2, help='seconds per picture with --show; default: 2')
    parser.add_argument('--tta', action='store_true', help="use test-time augmentation with the config's tta_pipeline")
    add_amp(parser)
    add_channels_last(parser)
    add_fuse_conv_bn(parser)
    add_common_arguments(parser)
    return parser.parse_args()


def write_predictions(cfg: Config, args: argparse.Namespace) -> str:
    """Make the first metric that can write predictions write them to ``--out``, and return its name."""
    if cfg.get('default_scope') == 'mmdet':
        raise SystemExit(
            f'--out writes label maps; {args.config} is a detector: add '
            '--cfg-options test_evaluator.outfile_prefix=… if its metric supports it, such as CocoMetric'
        )
    evaluators = cfg.test_evaluator if isinstance(cfg.test_evaluator, list | tuple) else [cfg.test_evaluator]
    for evaluator in evaluators:
        kind = component_class(evaluator, METRICS, cfg.get('default_scope'))
        if kind is not None and 'output_dir' in signature(kind).parameters:
            evaluator.update(output_dir=args.out, keep_results=True)
            return type_name(evaluator)
    names = ', '.join(map(type_name, evaluators))
    raise SystemExit(f'--out: no metric in test_evaluator of {args.config} can write predictions; it has {names}')


def check_names(dataset: BaseDataset) -> None:
    """Exit if two images in different folders have the same name, because their label maps would, too."""
    first: dict[str, str] = {}
    for path in (dataset.get_data_info(i)['img_path'] for i in range(len(dataset))):
        other = first.setdefault(Path(path).stem, path)
        if other != path:
            raise SystemExit(f'--out names label maps by the file names of images; {other} and {path} have the same')


def draw_predictions(cfg: Config, args: argparse.Namespace) -> PictureHook | None:
    """Make the config's hook draw all images for ``--show`` and ``--show-dir``, or return the hook that does."""
    hook = cfg.get('default_hooks', {}).get('visualization')
    if hook is None:
        raise SystemExit(f'--show and --show-dir require default_hooks.visualization, which {args.config} does not set')
    hook.update(draw=True, interval=1, show=args.show, wait_time=args.wait_time)  # all images
    kind = type_name(hook)
    if args.show_dir and kind == 'VOSVisualizationHook':
        hook.out_dir = args.show_dir
    elif args.show_dir and kind in ('SegVisualizationHook', 'DetVisualizationHook'):
        hook.draw = args.show
        options = (
            dict(pred_score_thr=hook.get('score_thr', 0.3))
            if 'Det' in kind
            else dict(legend=True, with_labels=False)  # mmseg would write names over the areas
        )
        return PictureHook(args.show_dir, hook.get('backend_args'), **options)
    elif args.show_dir:  # a custom hook, which draws through the visualizer
        cfg.visualizer.save_dir = args.show_dir
    return None


def augment(cfg: Config, args: argparse.Namespace) -> None:
    """Test with the pipeline and the model of the config's test-time augmentation."""
    if not (cfg.get('tta_pipeline') and cfg.get('tta_model')):
        raise SystemExit(f'--tta requires tta_pipeline and tta_model, which {args.config} does not set')
    for dataset in inner_data_sets(cfg.test_dataloader.dataset):
        dataset.pipeline = cfg.tta_pipeline
    cfg.tta_model.module = cfg.model
    if cfg.get('data_preprocessor') and 'data_preprocessor' in cfg.model:
        # mmengine would replace the model's by the one at the top level of the config, which it may have changed
        cfg.tta_model.setdefault('data_preprocessor', cfg.model.data_preprocessor)
    cfg.model = cfg.tta_model


def main() -> None:
    args = parse_args()
    cfg = config_from(args)
    cfg.load_from = args.checkpoint
    if args.show:
        check_display('--show', '--show-dir')
    pictures = draw_predictions(cfg, args) if args.show or args.show_dir else None
    if args.tta:
        augment(cfg, args)
    if args.amp:
        try:
            enable_test_amp(cfg)
        except ValueError as error:
            raise SystemExit(f'--amp: {args.config}: {error}') from None
    written = None if args.out is None else write_predictions(cfg, args)
    check_checkpoint(args.checkpoint)
    for argument, folder in (('--out', args.out), ('--show-dir', args.show_dir)):
        if folder is not None:
            check_not_input(argument, folder, [args.config, args.checkpoint, *data_paths(cfg)])
            check_writable(folder)
    prepare_for_cpu(cfg)
    runner = RUNNERS.build(cfg) if 'runner_type' in cfg else Runner.from_cfg(cfg)
    if args.channels_last:
        use_channels_last(runner.model)
    if args.fuse_conv_bn:
        fuse_at_first_call(runner.model)
    log_operators()
    if pictures is not None:
        runner.register_hook(pictures)
    add_check(runner)
    runner.call_hook('before_test_loop')  # a stage that mmattn adds, before mmengine builds the data sets
    dataset = runner.test_loop.dataloader.dataset
    for argument, folder in (('--out', args.out), ('--show-dir', args.show_dir)):
        if folder is not None:  # folders that the data set knows by itself, such as Annotations of DAVIS
            check_not_input(argument, folder, filter(None, getattr(dataset, 'data_prefix', {}).values()))
    if written in LABEL_MAPS:
        check_names(dataset)
    runner.test()
    if written in LABEL_MAPS and dataset.metainfo.get('reduce_zero_label'):
        print_log(
            f'{args.out}: labels as in the annotations, where class 0 is 1 (reduce_zero_label); image_demo.py '
            'writes class indices from 0',
            'current',
        )
    leave_process_group()


if __name__ == '__main__':
    run(main)
