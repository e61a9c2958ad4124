"""Check of the files of visual questions before training: questions, answers, regions and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmattn.language.regions.image_inputs import picture_paths, warn_of_shared_images, with_region_faults
from mmattn.language.text.annotation_files import in_folder, noting

from .datasets import Recipe, image_faults
from .questions import Question, read_questions


def find_faults(cfgs: Sequence[dict], model: Any) -> dict[str, list[str]]:
    """Return the faults of data sets and what does not fit the model, by path. Region features are not read.

    Args:
        cfgs (sequence of dict): configs of data sets of visual questions.
        model (object): ``num_features``, the width of the regions that it accepts, or None if it reads pictures, and
            ``num_answers``. An attribute that it does not have is not compared.

    Returns:
        dict[str, list[str]]: faults of files of questions, region stores and folders of pictures.

    Example:
        >>> from types import SimpleNamespace
        >>> model = SimpleNamespace(num_features=2048, num_answers=3129)
        >>> find_faults([dict(ann_file='questions.json', regions='regions')], model)['questions.json']
        ['No such file or directory']
    """
    faults: dict[str, list[str]] = {}
    files: dict[str, list[Question]] = {}
    images: dict[str, list[str]] = {}  # by region store
    read: dict[bool, list[str]] = {False: [], True: []}  # by test_mode
    reads_pictures = getattr(model, 'num_features', 0) is None
    for cfg in cfgs:
        recipe, test_mode = Recipe.of(cfg), cfg.get('test_mode', False)
        regions, pictures = in_folder(recipe.data_root, cfg.get('regions'), cfg.get('images'))
        extra = [] if test_mode else in_folder(recipe.data_root, *cfg.get('extra_files', ()))
        paths, words, answers = recipe.files()
        for each in dict.fromkeys([*paths, *extra, *words, *answers]):
            if each not in files and each not in faults:
                with noting(faults, each):
                    files[each] = read_questions(each)
        used = [each for each in (*paths, *extra) if each in files]
        read[test_mode] += [question.image_id for each in used for question in files[each]]
        if not test_mode:
            for each in used:
                if not files[each][0].answers:
                    faults.setdefault(each, []).append('no answers, which training requires')
        if all(each in files for each in answers):
            with noting(faults, answers[0]):
                count, expected = len(recipe.answers()), getattr(model, 'num_answers', None)
                if expected not in (None, count):
                    message = f'{count:,} answers, but the model has {expected:,}'
                    faults.setdefault(answers[0], []).append(f'{message} (--cfg-options model.num_answers={count})')
        if hasattr(model, 'num_features') and reads_pictures != (pictures is not None):
            kind = (
                'pictures, but the data set has regions' if reads_pictures else 'regions, but the data set has pictures'
            )
            faults.setdefault(paths[0], []).append(f'the model reads {kind}')
        elif pictures is not None:
            with noting(faults, pictures):
                places = picture_paths(pictures)
                for each in used:
                    faults.setdefault(each, []).extend(image_faults(files[each], places, pictures))
        elif isinstance(regions, str):
            images.setdefault(regions, []).extend(each.image_id for name in used for each in files[name])
    warn_of_shared_images(read[False], read[True])
    return with_region_faults(faults, images, getattr(model, 'num_features', None), allow_empty=True)
