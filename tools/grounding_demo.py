"""Find the regions that the phrases of a caption describe.

    python tools/grounding_demo.py CONFIG CHECKPOINT --regions STORE IMAGE "[a man] rides [a red bike]" \
[--picture FILE] [--entities FILE] [--out DIR]
    python tools/grounding_demo.py CONFIG CHECKPOINT --regions STORE --captions FILE --out DIR

IMAGE is the id of an image in the store. The phrases of a caption are in brackets. The checkpoint contains the
vocabulary.

For one caption, the best box of each phrase and its score are printed. With --out, DIR/phrases.png shows the boxes,
drawn in --picture, with the true boxes of --entities dashed, and DIR/phrases.json has the best boxes of each phrase.

FILE has one caption per line: the id of the image, a tab, and the caption. Finished captions are kept in
DIR/phrases.json.part. After an interruption, the same command with --resume continues, and the result is the same as
after an uninterrupted run.

Words that are not in the vocabulary are reported. They are read as one unknown word.
"""

import argparse
import json
from pathlib import Path

from PIL import Image

from mmattn.engine import add_config_options, add_device, check_checkpoint, load_config
from mmattn.language.grounding.entities import read_entities
from mmattn.language.grounding.inferencer import GroundingInferencer
from mmattn.language.regions.image_inputs import check_shape, given_picture
from mmattn.language.text.text_files import read_lines
from mmattn.utils.command import run
from mmattn.utils.faults import Faults
from mmattn.utils.files import atomic_write, check_not_input, check_writable, input_files, write_text
from mmattn.utils.resumable import check_output, progress_path


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Find the regions that the phrases of captions describe')
    parser.add_argument('config', help='path of the config')
    parser.add_argument('checkpoint', help='path or URL of the checkpoint')
    parser.add_argument(
        '--regions',
        type=Path,
        action='append',
        required=True,
        metavar='STORE',
        help='folder of a region store; may be given again',
    )
    parser.add_argument('image', nargs='?', help='id of the image')
    parser.add_argument('caption', nargs='?', help='caption with its phrases in brackets')
    parser.add_argument('--captions', type=Path, metavar='FILE', help='image ids and captions, one per line')
    parser.add_argument('--picture', type=Path, metavar='FILE', help='picture of the image, for phrases.png')
    parser.add_argument(
        '--entities',
        type=Path,
        metavar='FILE',
        help='prepared file, such as entities_test.json: draw its boxes, dashed',
    )
    parser.add_argument('--out', type=Path, metavar='DIR', help='folder for phrases.json and phrases.png')
    parser.add_argument('--top-k', type=int, default=5, metavar='K', help='boxes per phrase; default: %(default)s')
    parser.add_argument('--batch-size', type=int, metavar='N', default=64, help='default: %(default)s')
    add_device(parser)
    parser.add_argument('--resume', action='store_true', help='continue an interrupted run, from phrases.json.part')
    parser.add_argument(
        '--overwrite', action='store_true', help='replace files that exist; without --resume, also phrases.json.part'
    )
    add_config_options(parser)
    args = parser.parse_intermixed_args()
    if args.captions is None and args.caption is None:
        parser.error('IMAGE and a caption are required, or --captions')
    if args.captions is not None and args.image is not None:
        parser.error(f'--captions excludes IMAGE and caption; got {args.image}')
    if args.captions is not None and args.out is None:
        parser.error('--captions requires --out')
    if args.captions is None and args.resume:
        parser.error('--resume requires --captions')
    for name in ('picture', 'entities'):
        if getattr(args, name) is not None and (args.out is None or args.captions is not None):
            parser.error(f'--{name} requires --out, and excludes --captions')
    return args


def read_captions(args: argparse.Namespace) -> list[tuple[str, str]]:
    """Return image ids and captions."""
    if args.captions is None:
        return [(args.image, args.caption)]
    pairs, faults = [], []
    for number, line in enumerate(read_lines(args.captions), 1):
        image, tab, caption = line.partition('\t')
        if not image or not tab:
            faults.append(f'line {number}: must be an image id, a tab and a caption; got {line!r}')
        pairs.append((image, caption))
    Faults(args.captions, faults or (['no caption'] if not pairs else [])).check()
    return pairs


def main() -> None:
    args = parse_args()
    part = None
    if args.captions is not None:
        part = progress_path(args.out / 'phrases.json', args.resume, args.overwrite)
    elif args.out is not None:
        for name in ('phrases.json', 'phrases.png'):
            check_output(args.out / name, args.overwrite)
        check_writable(args.out)
    for name in ('phrases.json', 'phrases.json.part', 'phrases.png') if args.out is not None else ():
        check_not_input('--out', args.out / name, input_files(args))
    check_checkpoint(args.checkpoint)
    pairs, picture = read_captions(args), given_picture(args.picture)
    cfg = load_config(args.config, args.cfg_options)
    inferencer = GroundingInferencer(cfg, args.checkpoint, args.device, args.batch_size, amp=args.amp)
    if picture is not None:
        [caption] = inferencer.captions(args.regions, pairs)
        check_shape(args.picture, picture, args.image, caption.store[args.image].size)
    true_boxes: list = []
    if args.entities is not None:
        [caption] = inferencer.captions(args.regions, pairs)
        try:
            true_boxes = read_entities(args.entities).find_boxes(args.image, caption.caption)
        except ValueError as error:
            raise ValueError(f'{args.entities}: {error}') from error
    predictions = inferencer(args.regions, pairs, args.top_k, part, args.resume)['predictions']
    if args.captions is None:
        for phrase in predictions[0]['phrases']:
            box = ', '.join(f'{x:.0f}' for x in phrase['box'])
            print(f'{phrase["score"]:.3f}  {phrase["phrase"]}: {box}')
        if predictions[0]['unknown']:
            print(f'not in the vocabulary: {", ".join(predictions[0]["unknown"])}')
    if args.out is None:
        return
    if args.captions is None:
        [caption] = inferencer.captions(args.regions, pairs)
        with atomic_write(args.out / 'phrases.png') as temporary:
            Image.fromarray(inferencer.visualize(caption, predictions[0], picture, true_boxes)).save(temporary)
    write_text(args.out / 'phrases.json', json.dumps(predictions, ensure_ascii=False))
    if part is not None:
        part.unlink()
    unknown = sum(bool(prediction['unknown']) for prediction in predictions)
    print(f'{len(predictions):,} captions: {args.out / "phrases.json"}; {unknown:,} have unknown words')


if __name__ == '__main__':
    run(main)
