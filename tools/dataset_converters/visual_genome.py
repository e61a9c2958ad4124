"""Add the questions of Visual Genome about images of COCO to a folder of VQA, for training.

    python tools/dataset_converters/visual_genome.py data/visual_genome --vqa data/vqa2

The folder contains ``question_answers.json`` and ``image_data.json`` of version 1.2, in it or up to two levels below,
possibly .gz. Output::

    VQA/questions_genome_train.json     the questions about images of questions_train.json
    VQA/questions_genome_val.json       the questions about images of questions_val.json

Questions are numbered from 0 in each file, which is written atomically. A data set uses the questions whose answer its
models can give. All faults of the input are reported together, on stderr, with exit code 1.

Args:
    vqa (FOLDER): output of ``vqa.py``, whose images decide the split
"""

from pathlib import Path
from typing import Any

from common.conversion import Overwrite, check_folder, converter, find, write_texts
from common.vqa import Splits, print_counts
from mmattn.language.text.annotation_files import check_text, read_json
from mmattn.language.vqa.questions import Question, format_questions, read_questions
from mmattn.utils.command import run
from mmattn.utils.faults import Faults


def parse_image(entry: dict) -> tuple[int, str | None]:
    """Return the id of an image and its id in COCO, None if it is not in COCO."""
    number = entry['image_id'] if 'image_id' in entry else entry['id']
    return int(number), None if entry['coco_id'] is None else str(int(entry['coco_id']))


def parse_questions(entry: dict) -> list[Question]:
    questions = []
    for pair in entry['qas']:
        answer = check_text(pair['answer'])
        questions.append(Question(0, str(int(entry['id'])), check_text(pair['question']), [answer], answer))
    return questions


@converter
def main(folder: Path, *, vqa: Path, overwrite: Overwrite = False) -> None:
    check_folder(folder)
    outputs = {split: vqa / f'questions_genome_{split}.json' for split in ('train', 'val')}
    faults = Faults()
    for path in outputs.values():
        if path.exists() and not overwrite:
            faults.add(path, 'already exists; --overwrite replaces it')
    faults.check()
    images: dict[str, set[str]] = {}
    read: list[list[Any]] = []
    for split in outputs:
        path = vqa / f'questions_{split}.json'
        with faults.catch(path):
            images[split] = {question.image_id for question in read_questions(path)}
    for name, parse in (('image_data', parse_image), ('question_answers', parse_questions)):
        path = find(folder, f'{name}.json*')
        with faults.catch(path):
            read.append(faults.parse(path, read_json(path), parse, name))  # type: ignore[arg-type]
    faults.check()
    coco = dict(read[0])
    questions = [question for about_image in read[1] for question in about_image]
    splits: Splits = {split: [] for split in outputs}
    for question in questions:
        image_id = coco.get(int(question.image_id))
        for split, split_questions in splits.items():
            if image_id in images[split]:
                split_questions.append(question._replace(question_id=len(split_questions), image_id=image_id))
    Faults(folder, [f'no question about an image of {split}' for split in splits if not splits[split]]).check()
    write_texts({output: format_questions(splits[split]) for split, output in outputs.items()})
    print_counts(splits)
    print(f'about other images: {len(questions) - sum(map(len, splits.values())):,} questions, which are left out')


if __name__ == '__main__':
    run(main)
