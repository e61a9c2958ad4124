"""Convert COCO-QA to the files of visual questions.

    python tools/dataset_converters/coco_qa.py data/coco_vqa_mini_source --out-dir data/coco_qa

The folder contains, in it or up to two levels below, a folder of each of 'train' and 'val', 'train' and 'test', or
'test' alone for a trained model, with these files, one line per question::

    questions.txt, answers.txt, img_ids.txt
    types.txt                   0 object, 1 number, 2 colour, 3 location

With ``features_*.npz`` in the folder, see ``region_npz.py``, the regions are converted, too. Output::

    OUT/questions_{train,val,test}.json    see ``mmattn.language.vqa.questions``
    OUT/regions                            from features_*.npz; otherwise, ``bottom_up_features.py`` writes it

With 'train' and one of 'val' and 'test', every second image of the latter is in 'test', and the others in 'val'. So a
checkpoint is chosen on other images than those that its result is reported on.
"""

from pathlib import Path

from common.conversion import OutDir, Overwrite, check_folder, converter, find
from common.region_archives import find_archives
from common.regions import Float16
from common.vqa import check_archives, check_splits, hold_out, read_lines, write_set
from mmattn.language.vqa.questions import Question
from mmattn.utils.command import run
from mmattn.utils.faults import Faults

TYPES = ('object', 'number', 'color', 'location')
LONGEST_ID = 18  # digits; Python refuses to read thousands
NAMES = ('questions', 'answers', 'img_ids', 'types')


def read_split(folder: Path, first: int, faults: Faults) -> list[Question]:
    """Return the questions of a split, numbered from ``first``; what is wrong is added to ``faults``."""
    before = len(faults)
    columns = [[line.strip() for line in read_lines(folder / f'{name}.txt', faults)] for name in NAMES]
    if len(faults) > before:
        return []
    if len({len(column) for column in columns}) > 1 or not columns[0]:
        counts = ', '.join(f'{len(column):,} {name}' for column, name in zip(columns, NAMES))
        faults.add(folder, f'{counts}; there must be as many lines of each, at least one')
        return []
    questions = []
    for number, (text, answer, image, kind) in enumerate(zip(*columns)):
        if (
            not text
            or not answer
            or not image.isdecimal()
            or len(image) > LONGEST_ID
            or kind not in ('0', '1', '2', '3')
        ):
            faults.add(f'{folder}, line {number + 1}', f'not a question; got {text!r}, {answer!r}, {image!r}, {kind!r}')
            continue
        questions.append(Question(first + number, str(int(image)), text, [answer], answer, TYPES[int(kind)]))
    return questions


@converter
def main(folder: Path, *, out_dir: OutDir, float16: Float16 = False, overwrite: Overwrite = False) -> None:
    check_folder(folder)
    root = find(folder, '*/questions.txt').parents[1]
    faults = Faults()
    splits: dict[str, list[Question]] = {}
    for split in ('train', 'val', 'test'):
        if (root / split).is_dir():
            splits[split] = read_split(root / split, sum(map(len, splits.values())), faults)
    check_splits(splits, root, '{}/questions.txt', faults)
    archives = find_archives(folder)
    check_archives(splits, archives, '{}', faults)
    faults.check()
    write_set(folder, out_dir, hold_out(splits), archives, float16=float16, overwrite=overwrite)


if __name__ == '__main__':
    run(main)
