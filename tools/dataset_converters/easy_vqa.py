"""Convert easy-VQA to the files of visual questions.

    python tools/dataset_converters/easy_vqa.py data/easy_vqa_source --out-dir data/easy_vqa

The folder contains the questions and pictures of each of 'train' and 'val', 'train' and 'test', or 'test' alone for
a trained model::

    train_questions.json, or train/questions.json       possibly .gz: [question, answer, image_id], …
    train_images.zip, or train/images                   <image_id>.png

Output::

    OUT/questions_{train,val,test}.json    see ``mmattn.language.vqa.questions``
    OUT/images                             train_<image_id>.png and so on: ids count from 0 in each split

With 'train' and one of 'val' and 'test', every second image of the latter is in 'test', and the others in 'val'. So a
checkpoint is chosen on other images than those that its result is reported on.
"""

import tempfile
from pathlib import Path

from common.archives import unpack
from common.conversion import OutDir, Overwrite, check_folder, converter, find
from common.vqa import check_splits, hold_out, write_set
from mmattn.language.text.annotation_files import check_text, read_json
from mmattn.language.vqa.questions import Question
from mmattn.language.vqa.transforms import read_picture
from mmattn.utils.command import run
from mmattn.utils.faults import Faults


def read_split(path: Path, split: str, first: int, faults: Faults) -> list[Question]:
    """Return the questions of a split, numbered from ``first``; what is wrong is added to ``faults``."""

    def parse(entry: list) -> Question:
        question, answer, image = entry
        answer = check_text(answer)
        return Question(0, f'{split}_{int(image)}', check_text(question), [answer], answer)

    questions: list[Question] = []
    with faults.catch(path):
        questions = faults.parse(path, read_json(path), parse, 'questions')
        if not questions and path not in faults:
            raise ValueError('no question')
    return [question._replace(question_id=first + number) for number, question in enumerate(questions)]


@converter
def main(folder: Path, *, out_dir: OutDir, overwrite: Overwrite = False) -> None:
    check_folder(folder)
    faults = Faults()
    splits: dict[str, list[Question]] = {}
    pictures: dict[str, Path] = {}
    paths = {
        split: path
        for split in ('train', 'val', 'test')
        for name in (f'{split}/questions.json*', f'{split}_questions.json*')
        for path in sorted(folder.glob(name), reverse=True)
    }
    check_splits(paths, folder, '{}_questions.json', faults)
    faults.check()  # before pictures are unpacked
    with tempfile.TemporaryDirectory() as scratch:
        for split, path in paths.items():
            places = (folder / f'{split}_images.zip', folder / split / 'images')
            images = next((place for place in places if place.exists()), None)
            splits[split] = read_split(path, split, sum(map(len, splits.values())), faults)
            with faults.catch(folder):
                if images is None:
                    raise ValueError(f'no {split}_images.zip or {split}/images in it')
                unpacked = find(unpack(images, Path(scratch)), '*.png').parent
                for image_id in dict.fromkeys(question.image_id for question in splits[split]):
                    picture = unpacked / f'{image_id.removeprefix(f"{split}_")}.png'
                    pictures[image_id] = picture
                    if not picture.is_file():
                        faults.add(images, f'no {picture.name} in it, which a question of {path} has')
                        continue
                    with faults.catch(picture):
                        read_picture(picture)
        faults.check()
        write_set(folder, out_dir, hold_out(splits), pictures=pictures.items(), overwrite=overwrite)
    print(f'{out_dir / "images"}: {len(pictures):,} pictures')


if __name__ == '__main__':
    run(main)
