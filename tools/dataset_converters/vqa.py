"""Convert VQA 1.0 or 2.0 to the files of visual questions.

    python tools/dataset_converters/vqa.py data/vqa2_source --out-dir data/vqa2
    python tools/dataset_converters/vqa.py data/coco_vqa_mini_source --out-dir data/coco_vqa_mini --hold-out

The folder contains the published files, in it or up to two levels below, possibly .gz. Those of VQA 1.0 have no
``v2_``; test files are optional, or alone for a trained model::

    v2_OpenEnded_mscoco_{train2014,val2014,test2015,test-dev2015}_questions.json
    v2_mscoco_{train2014,val2014}_annotations.json

A subset has a word before the split and no year, such as ``v2_OpenEnded_mscoco_minitrain_questions.json`` and
``v2_mscoco_minitrain_annotations.json``. With ``features_*.npz`` in the folder, see ``region_npz.py``, the regions are
converted, too. Output::

    OUT/questions_{train,val,test,test-dev}.json    see ``mmattn.language.vqa.questions``
    OUT/regions                                     from features_*.npz; otherwise, ``bottom_up_features.py`` writes it

Args:
    hold_out: every second image of val becomes test: for sets without test
"""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import common.vqa
from common.conversion import OutDir, Overwrite, check_folder, converter
from common.region_archives import find_archives
from common.regions import Float16
from common.vqa import Splits, check_archives, write_set
from mmattn.language.text.annotation_files import check_text, read_json
from mmattn.language.vqa.questions import HUMANS, Question
from mmattn.utils.command import run
from mmattn.utils.faults import Faults, FaultsError

NAME = re.compile(
    r'(v2_)?(OpenEnded_)?mscoco_(?:[a-z]+?)?(train|val|test-dev|test)(?:\d{4})?_(questions|annotations)\.json(?:\.gz)?'
)


def find_files(folder: Path) -> dict[tuple[str, str], Path]:
    """Return the published files by split and kind, 'questions' or 'annotations'."""
    paths: dict[tuple[str, str], Path] = {}
    versions: dict[str, Path] = {}
    faults = Faults()
    for pattern in ('*', '*/*', '*/*/*'):
        for path in sorted(folder.glob(pattern)):
            match = NAME.fullmatch(path.name)
            if match is None or bool(match[2]) != (match[4] == 'questions'):
                continue
            versions.setdefault(match[1] or '', path)
            other = paths.setdefault((match[3], match[4]), path)
            if other != path:
                faults.add(path, f'{match[4]} of {match[3]}, as {other}')
    if len(versions) > 1:
        faults = Faults(
            ' and '.join(map(str, versions.values())), ['of VQA 2.0 and 1.0; a folder must have one of them']
        )
    alone = bool(paths) and {split for split, _ in paths} <= {'test', 'test-dev'}  # a test set for a trained model
    for split, kind in (('train', 'questions'), ('val', 'questions'), *((s, 'annotations') for s in ('train', 'val'))):
        if (split, kind) not in paths and not alone:
            name = '[v2_]' + ('OpenEnded_' if kind == 'questions' else '') + f'mscoco_{split}2014_{kind}.json'
            faults.add(folder, f'no {kind} of {split} ({name}) in it')
    faults.check()
    return paths


def parse_question(entry: dict) -> Question:
    """Return a published question, without answers."""
    return Question(int(entry['question_id']), str(int(entry['image_id'])), check_text(entry['question']))


def parse_annotation(entry: dict) -> Question:
    """Return a published annotation as a question without text."""
    return Question(
        int(entry['question_id']),
        str(int(entry['image_id'])),
        '',
        [check_text(answer['answer']) for answer in entry['answers']],
        check_text(entry['multiple_choice_answer']),
        check_text(entry['question_type']),
        check_text(entry['answer_type']),
    )


def read_entries(path: Path, kind: str, faults: Faults) -> list[Question]:
    """Return the entries of a file; what is wrong with it is added to ``faults``."""
    entries: list[Question] = []
    with faults.catch(path):
        data: Any = read_json(path)
        parse = parse_question if kind == 'questions' else parse_annotation
        entries = faults.parse(path, data.get(kind) if isinstance(data, dict) else None, parse, kind)
    counts = Counter(entry.question_id for entry in entries)
    faults.add(path, *(f'question {number}: {count} times' for number, count in counts.items() if count > 1))
    return entries


def join(path: Path, questions: list[Question], annotations: list[Question], faults: Faults) -> list[Question]:
    """Return the questions with their annotations, from the file ``path``; what does not fit is added to ``faults``."""
    by_id = {annotation.question_id: annotation for annotation in annotations}
    joined = []
    for question in questions:
        annotation = by_id.pop(question.question_id, None)
        if annotation is None:
            faults.add(path, f'question {question.question_id}: no annotation')
            continue
        if annotation.image_id != question.image_id:
            images = f'{annotation.image_id} in the annotation, {question.image_id} in the question'
            faults.add(path, f'question {question.question_id}: image {images}')
        if len(annotation.answers) != HUMANS:
            faults.add(path, f'question {question.question_id}: {len(annotation.answers)} answers, not {HUMANS}')
        elif annotation.answer not in annotation.answers:
            faults.add(path, f'question {question.question_id}: {annotation.answer!r} is none of its {HUMANS} answers')
        joined.append(annotation._replace(question=question.question))
    faults.add(path, *(f'question {number}: an annotation, but no question' for number in by_id))
    return joined


def read_splits(folder: Path) -> Splits:
    """Return the questions of a folder by split."""
    files = find_files(folder)
    faults = Faults()
    splits: Splits = {}
    for split in ('train', 'val', 'test', 'test-dev'):
        if (split, 'questions') not in files:
            continue
        before = len(faults)
        splits[split] = read_entries(files[split, 'questions'], 'questions', faults)
        if (split, 'annotations') in files:
            path = files[split, 'annotations']
            annotations = read_entries(path, 'annotations', faults)
            if len(faults) == before:
                splits[split] = join(path, splits[split], annotations, faults)
        if len(faults) == before and not splits[split]:
            faults.add(files[split, 'questions'], 'no question')
    faults.check()
    return splits


@converter
def main(
    folder: Path, *, hold_out: bool = False, out_dir: OutDir, float16: Float16 = False, overwrite: Overwrite = False
) -> None:
    check_folder(folder)
    splits = read_splits(folder)
    if hold_out:
        if 'test' in splits or 'val' not in splits:
            raise FaultsError(folder, 'has questions of the test set, so --hold-out cannot be used')
        splits = common.vqa.hold_out(splits)
    archives = find_archives(folder)
    faults = Faults()
    check_archives(splits, archives, '{}', faults)
    faults.check()
    write_set(folder, out_dir, splits, archives, float16=float16, overwrite=overwrite)


if __name__ == '__main__':
    run(main)
