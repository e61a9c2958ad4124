"""Splits, region store and question files that all converters of visual questions share."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from mmattn.language.regions.region_writer import RegionWriter
from mmattn.language.text import text_files
from mmattn.language.vqa.questions import Question, write_questions
from mmattn.utils.faults import Faults

from .conversion import check_held_out, output_folder, warn_of_test_set
from .region_archives import image_sizes, missing_regions, read_images
from .regions import describe_source, write_images

Splits = dict[str, list[Question]]


def read_lines(path: Path, faults: Faults) -> list[str]:
    """Read the lines of a text file, and add what is wrong with it to ``faults``."""
    with faults.catch(path):
        return text_files.read_lines(path)
    return []


def hold_out(splits: Mapping[str, Sequence[Question]]) -> Splits:
    """Hold out images, so that a checkpoint is chosen on other images than its result is reported on.

    If 'train' comes with 'val' or 'test' alone, every second image of this split, in the order of the file, goes to
    'test', and the others to 'val'. One image alone raises a FaultsError.
    """
    held = {split: list(questions) for split, questions in splits.items()}
    if 'train' not in held:  # a test set for a model that is trained
        return held
    if 'val' not in held:
        held['val'] = held.pop('test')
    if 'test' not in held:
        names = list(dict.fromkeys(question.image_id for question in held['val']))
        check_held_out(f'split {"val" if "val" in splits else "test"}', names)
        images = set(names[1::2])
        held['test'] = [question for question in held['val'] if question.image_id in images]
        held['val'] = [question for question in held['val'] if question.image_id not in images]
    return held


def check_splits(splits: Collection[str], folder: Path, name: str, faults: Faults) -> None:
    """Find the files, ``name`` with {} for the split, that a folder lacks. 'train' requires 'val' or 'test'."""
    absent = [('train', 'val', 'test')] if not splits else [('val', 'test')] * (set(splits) == {'train'})
    faults.add(folder, *(f'no {" or ".join(map(name.format, names))} in it' for names in absent))


def check_archives(
    splits: Mapping[str, Sequence[Question]], archives: Sequence[Path], id_format: str, faults: Faults
) -> None:
    """Check archives with region features and, if they are sound, find the images that have no regions."""
    before = len(faults)
    stored = image_sizes(archives, faults, id_format)
    if archives and len(faults) == before:
        for split, questions in splits.items():
            image_ids = (question.image_id for question in questions)
            faults.add(f'{archives[0].parent}, {split}', *missing_regions(image_ids, stored))


def write_set(
    folder: Path,
    out_dir: Path,
    splits: Mapping[str, Sequence[Question]],
    archives: Sequence[Path] = (),
    id_format: str = '{}',
    pictures: Iterable[tuple[str, Path]] = (),
    *,
    float16: bool = False,
    overwrite: bool,
) -> None:
    """Write the prepared files of the data set in ``folder`` atomically, and print the numbers of questions.

    The ``archives`` have the regions of the images, whose ids are ``id_format`` with {} for the image_id. Without
    archives, ``pictures`` are copied, given as id and file.
    """
    written = {f'questions_{split}.json' for split in (*splits, 'test', 'test-dev')}
    written |= {'regions'} if archives else {'images'}  # a store from another converter is never deleted
    with output_folder(out_dir, overwrite, [folder], written) as scratch:
        new = scratch / 'new'
        new.mkdir()
        if archives:
            with RegionWriter(new / 'regions', describe_source(archives), float16) as writer:
                write_images(writer, read_images(archives, id_format))
        for image_id, source in pictures:
            (new / 'images').mkdir(exist_ok=True)
            (new / 'images' / f'{image_id}{source.suffix}').write_bytes(source.read_bytes())
        for split, questions in splits.items():
            write_questions(new / f'questions_{split}.json', questions)
    print_counts(splits)
    if archives:
        print(f'{out_dir / "regions"}: {len(writer):,} images')
    warn_of_test_set(splits)


def print_counts(splits: Mapping[str, Sequence[Question]]) -> None:
    """Print the numbers of images, questions and different majority answers of each split."""
    for split, questions in splits.items():
        images = {question.image_id for question in questions}
        answers = {question.answer for question in questions}
        text = f'{len(answers):,} majority answers' if any(answers) else 'no answers'
        print(f'{split}: {len(images):,} images, {len(questions):,} questions, {text}')
