"""Translate text, one sentence per line, with a trained model.

    python tools/translation_demo.py CONFIG CHECKPOINT [INPUT] [--out FILE]

Without INPUT, the text is read from the standard input; without --out, translations are written to the standard output.
The checkpoint contains vocabulary and subword codes, so no folder of data is needed. An empty line has an empty
translation. Characters that the vocabulary does not have are reported. A model of lower-cased text, such as those of
Multi30k, writes lower-cased translations: a score that regards case is then near 0.

With --out, finished sentences are kept in FILE.part. After an interruption, the same command with --resume continues,
and FILE is the same as after an uninterrupted run. --attention DIR draws the attention for the first sentences.

Args:
    input: UTF-8 text file; default: the standard input
    out (FILE): file to write; default: the standard output
    beam (N): hypotheses per sentence; default: as in the config
    n_best (N): write the best N translations of each sentence: number of the line, score and text, separated by tabs
    length_penalty (A): exponent of the length penalty; default: as in the config
    max_source_length (N): a sentence of more subword pieces is an error
    batch_tokens (N): subword pieces per batch
    attention (DIR): folder for pictures of attention, <line>.png
    attention_lines (N): number of sentences with a picture, the first ones
    attention_layer (N): layer of encoder and decoder that is drawn, from 1; default: the last
    resume: continue an interrupted run, from FILE.part
    overwrite: replace FILE and pictures that exist; without --resume, also FILE.part
"""

import sys
from contextlib import redirect_stdout
from dataclasses import KW_ONLY, dataclass
from itertools import islice
from pathlib import Path
from typing import IO

from PIL import Image

from mmattn.engine import Amp, ModelArguments, check_checkpoint, load_config
from mmattn.language.text.text_files import decode_lines, read_lines
from mmattn.language.translation.attention_pictures import attention_parts
from mmattn.language.translation.inferencer import TranslationInferencer
from mmattn.utils.arguments import UsageError, command
from mmattn.utils.command import describe, run
from mmattn.utils.files import atomic_write, check_not_input, check_writable, input_files
from mmattn.utils.resumable import check_output, progress_path


@dataclass
class Arguments(ModelArguments):
    """What the command is given."""

    input: Path | None = None
    _: KW_ONLY
    out: Path | None = None
    beam: int | None = None
    n_best: int | None = None
    length_penalty: float | None = None
    max_source_length: int = 250
    batch_tokens: int = 4096
    amp: Amp = False
    attention: Path | None = None
    attention_lines: int = 1
    attention_layer: int | None = None
    resume: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.resume and self.out is None:
            raise UsageError('--resume requires --out')
        if self.attention_lines < 1:
            raise UsageError(f'--attention-lines must be at least 1; got {self.attention_lines}')


def check_outputs(args: Arguments) -> Path | None:
    """Return the progress file of a run, after all checks of the output."""
    if args.out is None:
        return None
    path = progress_path(args.out, args.resume, args.overwrite)
    for written in (args.out, path):
        check_not_input('--out', written, input_files(args))
    return path


def format_translations(predictions: list[dict], n_best: int | None) -> bytes:
    if n_best is None:
        lines = [prediction['text'] for prediction in predictions]
    else:
        lines = [
            f'{number}\t{hypothesis["score"]:.6f}\t{hypothesis["text"]}'
            for number, prediction in enumerate(predictions, 1)
            for hypothesis in prediction['n_best']
        ]
    return ''.join(f'{line}\n' for line in lines).encode()


def translate(args: Arguments, output: IO[bytes]) -> None:
    """Translate the input, and write translations and pictures."""
    part = check_outputs(args)
    check_checkpoint(args.checkpoint)
    cfg = load_config(args.config, args.cfg_options)
    lines = [] if args.input is None else read_lines(args.input)
    inferencer = TranslationInferencer(cfg, args.checkpoint, args.device, args.batch_tokens, amp=args.amp)
    if args.attention is not None:
        attention_parts(inferencer.model, args.attention_layer)
        check_writable(args.attention)
    if args.input is None:
        lines = list(decode_lines(sys.stdin.buffer, 'standard input'))
    pictures = {}
    if inferencer.meta['lowercase']:
        print('Translations are in lower case, as the training text of this model: score them without regard to case')
    if args.attention is not None:
        drawn = islice((number for number, line in enumerate(lines) if inferencer.pipeline(line)), args.attention_lines)
        pictures = {number: args.attention / f'{number + 1}.png' for number in drawn}
        for path in pictures.values():
            check_output(path, args.overwrite)
        if not pictures:
            print(f'{args.attention}: no picture, because no line has text')
    predictions = inferencer(
        lines,
        beam=args.beam,
        length_penalty=args.length_penalty,
        n_best=1 if args.n_best is None else args.n_best,
        max_source_length=args.max_source_length,
        progress_file=part,
        resume=args.resume,
        name='standard input' if args.input is None else str(args.input),
    )['predictions']
    for number, path in pictures.items():
        picture = inferencer.visualize(lines[number], predictions[number]['pieces'], args.attention_layer)
        with atomic_write(path) as temporary:
            Image.fromarray(picture).save(temporary)
    content = format_translations(predictions, args.n_best)
    if part is None:
        output.write(content)
        output.flush()
    else:
        with atomic_write(args.out) as temporary:
            temporary.write_bytes(content)
        part.unlink()


@command
def main(args: Arguments) -> None:
    try:
        with redirect_stdout(sys.stderr):
            translate(args, sys.__stdout__.buffer)  # type: ignore[union-attr]
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: lists the keys that do not fit
        raise SystemExit(describe(error)) from error


if __name__ == '__main__':
    run(main)
