"""Convert DAQUAR to the files of visual questions.

    python tools/dataset_converters/daquar.py data/daquar_source --out-dir data/daquar

The folder contains the questions of each of 'train' and 'val', 'train' and 'test', or 'test' alone for a trained
model. A line with a question, whose end names the image, and a line with its answer alternate::

    qa.{train,val,test}.txt     or qa.37.raw.train.txt, qa.894.raw.train.txt and so on

With ``features_*.npz`` in the folder, see ``region_npz.py``, the regions are converted, too; their ``image_id`` 12 is
``image12``. Output::

    OUT/questions_{train,val,test}.json    see ``mmattn.language.vqa.questions``; the image's name is cut off
    OUT/regions                            from features_*.npz

With 'train' and one of 'val' and 'test', every second image of the latter is in 'test', and the others in 'val'. So a
checkpoint is chosen on other images than those that its result is reported on.
"""

import re
from pathlib import Path

from common.conversion import OutDir, Overwrite, check_folder, converter
from common.region_archives import find_archives
from common.regions import Float16
from common.vqa import check_archives, check_splits, hold_out, read_lines, write_set
from mmattn.language.vqa.questions import Question
from mmattn.utils.command import run
from mmattn.utils.faults import Faults

# with 'in the' before it, but a few questions have 'in', 'in this' or nothing
IMAGE = re.compile(r'(?: (?:in|of|on))?(?: (?:the|this))? (image\d+) ?\?$')


def read_split(path: Path, first: int, faults: Faults) -> list[Question]:
    """Return the questions of a split, numbered from ``first``; what is wrong is added to ``faults``."""
    lines = [line.strip() for line in read_lines(path, faults)]
    while lines and not lines[-1]:
        lines.pop()
    if len(lines) % 2:
        faults.add(path, f'{len(lines):,} lines; each question must have a line with its answer')
    questions = []
    for number, (question, answer) in enumerate(zip(lines[::2], lines[1::2])):
        match = IMAGE.search(question)
        if match is None or not answer:
            line = f'{path}, line {2 * number + 1}'
            reason = 'the answer is empty' if match else 'the question does not end in an image, such as image12 ?'
            faults.add(line, f'{reason}; got {question!r}')
            continue
        questions.append(Question(first + number, match[1], question[: match.start()], [answer], answer))
    if not lines and path.is_file():
        faults.add(path, 'no question')
    return questions


@converter
def main(folder: Path, *, out_dir: OutDir, float16: Float16 = False, overwrite: Overwrite = False) -> None:
    check_folder(folder)
    faults = Faults()
    splits: dict[str, list[Question]] = {}
    for split in ('train', 'val', 'test'):
        paths = sorted(folder.glob(f'qa.*{split}.txt'))
        if len(paths) > 1:
            faults.add(folder, f'must have one file of {split}; got {", ".join(path.name for path in paths)}')
        elif paths:
            splits[split] = read_split(paths[0], sum(map(len, splits.values())), faults)
    check_splits(splits, folder, 'qa.*{}.txt', faults)
    archives = find_archives(folder)
    check_archives(splits, archives, 'image{}', faults)
    faults.check()
    write_set(folder, out_dir, hold_out(splits), archives, 'image{}', float16=float16, overwrite=overwrite)


if __name__ == '__main__':
    run(main)
