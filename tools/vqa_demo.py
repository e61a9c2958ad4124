"""Answer questions about images with a trained model, by region features or by pictures.

    python tools/vqa_demo.py CONFIG CHECKPOINT --regions STORE IMAGE "What is this?" [--picture FILE] [--out DIR]
    python tools/vqa_demo.py CONFIG CHECKPOINT --regions STORE --questions FILE --out DIR

IMAGE is the id of an image in the store. A model with an image encoder reads pictures: --images FOLDER in place of
--regions; the id is then the name of a file without suffix. The checkpoint contains vocabulary and answers.

For one question, the best answers and their scores are printed. With --out, DIR/attention.png shows the attention maps
of words × regions in log scale, and the six regions with the largest weights in the first glimpse, drawn in --picture.

FILE is a prepared file of questions; see docs/visual_questions.md. DIR/answers.json has the answers. Finished ones are
kept in DIR/answers.json.part. After an interruption, the same command with --resume continues, and the result is the
same as after an uninterrupted run.

Words that are not in the vocabulary are reported. They do not change the answer, or only as one unknown word.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from PIL import Image

from mmattn.engine import add_config_options, add_device, check_checkpoint, load_config
from mmattn.language.regions.image_inputs import check_shape, given_picture
from mmattn.language.vqa.inferencer import VQAInferencer
from mmattn.utils.command import run
from mmattn.utils.files import atomic_write, check_not_input, check_writable, input_files, write_text
from mmattn.utils.resumable import check_output, progress_path


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Answer questions about images')
    parser.add_argument('config', help='path of the config')
    parser.add_argument('checkpoint', help='path or URL of the checkpoint')
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        '--regions', type=Path, action='append', metavar='STORE', help='folder of a region store; may be given again'
    )
    source.add_argument('--images', type=Path, metavar='FOLDER', help='pictures, for a model with an image encoder')
    parser.add_argument('image', nargs='?', help='id of the image')
    parser.add_argument('question', nargs='?', help='question, in quotation marks')
    parser.add_argument('--questions', type=Path, metavar='FILE', help='prepared file of questions')
    parser.add_argument(
        '--picture', type=Path, metavar='FILE', help='picture of the image, for attention.png; it may be reduced'
    )
    parser.add_argument('--out', type=Path, metavar='DIR', help='folder for attention.png or answers.json')
    parser.add_argument('--top-k', type=int, default=5, metavar='K', help='answers per question; default: %(default)s')
    parser.add_argument('--batch-size', type=int, metavar='N', default=64, help='default: %(default)s')
    add_device(parser)
    parser.add_argument('--resume', action='store_true', help='continue an interrupted run, from answers.json.part')
    parser.add_argument(
        '--overwrite', action='store_true', help='replace a file that exists; without --resume, also answers.json.part'
    )
    add_config_options(parser)
    args = parser.parse_intermixed_args()
    if args.questions is None and (args.image is None or not (args.question or '').strip()):
        parser.error('IMAGE and a question are required, or --questions')
    if args.questions is not None and args.image is not None:
        parser.error(f'--questions excludes IMAGE and question; got {args.image}')
    if args.questions is not None and (args.picture is not None or args.out is None):
        parser.error('--questions requires --out, and excludes --picture')
    if args.questions is None and args.resume:
        parser.error('--resume requires --questions')
    if args.picture is not None and (args.out is None or args.images is not None):
        parser.error('--picture requires --regions and --out')
    return args


def answer_all(args: argparse.Namespace, inferencer: VQAInferencer, part: Path) -> None:
    predictions = inferencer(args.regions or args.images, args.questions, args.top_k, part, args.resume)['predictions']
    write_text(args.out / 'answers.json', json.dumps(predictions, ensure_ascii=False))
    part.unlink()
    unknown = sum(bool(prediction['unknown']) for prediction in predictions)
    print(f'{len(predictions):,} answers: {args.out / "answers.json"}; {unknown:,} questions have unknown words')
    if long := sum(bool(prediction['unread']) for prediction in predictions):
        print(f'{long:,} questions have more than {inferencer.tokenizer.max_words} words, of which the first are read')


def answer_one(args: argparse.Namespace, inferencer: VQAInferencer, picture: np.ndarray | None) -> None:
    pairs = [(args.image, args.question)]
    [prediction] = inferencer(args.regions or args.images, pairs, args.top_k)['predictions']
    if args.out is not None:
        [asked_question] = inferencer.questions(args.regions or args.images, pairs)
        if picture is not None:
            check_shape(args.picture, picture, args.image, asked_question.images[args.image].size)
        with atomic_write(args.out / 'attention.png') as temporary:
            Image.fromarray(inferencer.visualize(asked_question, picture, args.top_k)).save(temporary)
    lines = [f'{answer["score"]:.3f}  {answer["answer"]}' for answer in prediction['answers']]
    print('\n'.join(['score  answer', *lines]))
    if prediction['unknown']:
        print(f'not in the vocabulary: {", ".join(prediction["unknown"])}')
    if prediction['unread']:
        print(f'only the first {inferencer.tokenizer.max_words} words are read, not: {" ".join(prediction["unread"])}')
    if args.out is not None:
        print(args.out / 'attention.png')


def main() -> None:
    args = parse_args()
    if args.questions is not None:
        part = progress_path(args.out / 'answers.json', args.resume, args.overwrite)
    elif args.out is not None:
        check_output(args.out / 'attention.png', args.overwrite)
        check_writable(args.out)
    for name in ('answers.json', 'answers.json.part', 'attention.png') if args.out is not None else ():
        check_not_input('--out', args.out / name, input_files(args))
    check_checkpoint(args.checkpoint)
    picture = given_picture(args.picture)
    cfg = load_config(args.config, args.cfg_options)
    inferencer = VQAInferencer(cfg, args.checkpoint, args.device, args.batch_size, amp=args.amp)
    if inferencer.reads_pictures != (args.images is not None):
        raise ValueError(f'this model requires {"--images" if inferencer.reads_pictures else "--regions"}')
    if args.questions is not None:
        answer_all(args, inferencer, part)
        return
    if not inferencer.tokenizer.words(args.question):
        raise ValueError(f'the question must have a word; got {args.question!r}')
    answer_one(args, inferencer, picture)


if __name__ == '__main__':
    run(main)
