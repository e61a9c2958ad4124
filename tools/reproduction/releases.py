"""Tiny releases: a few random images, clips and sentences in the published layout of each data set.

The converters in tools/dataset_converters, or the configs where no converter is needed, read them as they read the
downloads.
"""

import base64
import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIZE = (48, 40)  # width and height of images
CLIP_SIZE = (30, 44)  # height and width of the frames of clips
ENGLISH = ['A dog runs.', 'The dogs run, and the dog barks.', 'Men\u2028run.', "A man's hat."]
GERMAN = ['Ein Hund läuft.', 'Die Hunde laufen, und der Hund bellt.', 'Männer laufen.', 'Der Hut eines Mannes.']
TEN_ANSWERS = ['yes'] * 7 + ['no', 'maybe', 'café']


# Files and archives.


def text(lines: Iterable[str]) -> bytes:
    """Return the content of a text file."""
    return ''.join(f'{line}\n' for line in lines).encode()


def write_files(files: Mapping[str, bytes], root: Path) -> Path:
    """Write files by their paths below a folder, which is returned."""
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def pack(archive: Path, files: Mapping[str, bytes], mode: Any = 'w:gz') -> Path:
    """Write files by their names to a .zip, or to a tar file with the ``mode`` of tarfile, which is returned."""
    if archive.suffix == '.zip':
        with zipfile.ZipFile(archive, 'w') as zipped:
            for name, data in files.items():
                zipped.writestr(name, data)
    else:
        with tarfile.open(archive, mode) as packed:
            for name, data in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                packed.addfile(member, io.BytesIO(data))
    return archive


def write_json(path: Path, data: Any) -> Path:
    """Write JSON, compressed if the suffix is .gz. Returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = json.dumps(data, ensure_ascii=False).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == '.gz' else content)
    return path


def save(path: Path, array: NDArray, **options: Any) -> None:
    """Write an image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)


def photo(seed: int, size: tuple[int, int] = (20, 26)) -> NDArray:
    """Return a random picture, uint8 ``(height, width, 3)``."""
    return np.random.default_rng(seed).integers(0, 255, (*size, 3)).astype(np.uint8)


# Segmentation and detection.


def _pair(image_path: Path, label_path: Path, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = np.kron(rng.integers(0, classes, (5, 6)), np.ones((8, 8), int)).astype(np.uint8)
    image = (labels[..., None] * 255 // classes + rng.integers(0, 20, (*labels.shape, 3))).clip(0, 255).astype(np.uint8)
    labels[0, :3] = 255
    if classes > 30:  # more than there are blocks; the data check wants each class in the training masks
        labels[1:6].flat[:classes] = range(classes)
    for path, array in ((image_path, image), (label_path, labels)):
        save(path, array)


def folders(root: Path, suffix: str, classes: int, train: int = 4, val: int = 2, test: int = 0) -> None:
    """Write images and label maps in mmseg's folders img_dir and ann_dir."""
    for part, count in (('train', train), ('val', val), ('test', test)):
        for i in range(count):
            _pair(root / 'img_dir' / part / f'tile_{i}{suffix}', root / 'ann_dir' / part / f'tile_{i}.png', classes, i)


def cityscapes(root: Path) -> None:
    """Write Cityscapes, with labels as its own scripts write them."""
    for part, count in (('train', 4), ('val', 2)):
        for i in range(count):
            name = f'town/town_{i:06}_000019'
            _pair(
                root / 'leftImg8bit' / part / f'{name}_leftImg8bit.png',
                root / 'gtFine' / part / f'{name}_gtFine_labelTrainIds.png',
                19,
                i,
            )


def ade20k(root: Path) -> None:
    """Write ADE20K, whose label 0 is ignored."""
    for part, count in (('training', 4), ('validation', 2)):
        for i in range(count):
            _pair(root / 'images' / part / f'ADE_{i}.jpg', root / 'annotations' / part / f'ADE_{i}.png', 151, i)


def _boxes(path: Path, seed: int) -> list[tuple[int, int, int, int]]:
    """Write an image with two bright boxes. Returns left, top, right and bottom, the last two beyond the box."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 60, (SIZE[1], SIZE[0], 3)).astype(np.uint8)
    boxes = []
    for left, top in ((2, 3), (20, 17)):
        left, top = left + int(rng.integers(6)), top + int(rng.integers(6))
        boxes.append((left, top, left + 16, top + 14))
        pixels[top : top + 14, left : left + 16] = 200
    save(path, pixels)
    return boxes


def coco(root: Path) -> None:
    """Write COCO 2017: boxes of two of its categories, and one of each category in an image for training."""
    from mmdet.datasets import CocoDataset

    categories = [dict(id=i, name=name) for i, name in enumerate(CocoDataset.METAINFO['classes'])]
    for part, count in (('train2017', 4), ('val2017', 2)):
        boxes = [_boxes(root / part / f'{i:012}.jpg', i) for i in range(count)]
        annotations = [
            dict(
                id=2 * i + j,
                image_id=i,
                category_id=17 * j,
                bbox=[x0, y0, x1 - x0, y1 - y0],
                iscrowd=0,
                area=(x1 - x0) * (y1 - y0),
            )
            for i, pair in enumerate(boxes)
            for j, (x0, y0, x1, y1) in enumerate(pair)
        ]
        if part == 'train2017':  # the data check wants a box of each class
            annotations += [dict(annotations[0], id=1000 + i, category_id=i) for i in range(len(categories))]
        content = dict(
            images=[dict(id=i, file_name=f'{i:012}.jpg', width=SIZE[0], height=SIZE[1]) for i in range(count)],
            annotations=annotations,
            categories=categories,
        )
        write_json(root / 'annotations' / f'instances_{part}.json', content)


def voc(root: Path, classes: Sequence[str]) -> None:
    """Write a Pascal VOC folder; one of the boxes has no area."""
    for part, count in (('train', 4), ('val', 2)):
        names = [f'{part}_{i}' for i in range(count)]
        for i, name in enumerate(names):
            boxes = _boxes(root / 'JPEGImages' / f'{name}.jpg', i)
            if name == 'train_0':
                boxes.append((5, 5, 5, 9))
            if name == 'train_1':  # the data check wants a box of each class
                boxes.append((5, 5, 15, 14))
            objects = ''.join(
                f'<object><name>{classes[j % len(classes)]}</name><difficult>0</difficult><bndbox><xmin>{x0 + 1}</xmin>'
                f'<ymin>{y0 + 1}</ymin><xmax>{x1 + 1}</xmax><ymax>{y1 + 1}</ymax></bndbox></object>'
                for j, (x0, y0, x1, y1) in enumerate(boxes)
            )
            (root / 'Annotations').mkdir(exist_ok=True)
            (root / 'Annotations' / f'{name}.xml').write_text(
                f'<annotation><size><width>{SIZE[0]}</width><height>{SIZE[1]}</height><depth>3</depth></size>{objects}'
                '</annotation>',
                encoding='utf-8',
            )
        (root / 'ImageSets/Main').mkdir(parents=True, exist_ok=True)
        (root / 'ImageSets/Main' / f'{part}.txt').write_text('\n'.join(names) + '\n', encoding='utf-8')


# Faces.


def helen(root: Path, lists: Mapping[str, Sequence[str]]) -> None:
    """Write HELEN's release with random probabilities of its 11 labels; ``lists`` has the names by list file."""
    for seed, name in enumerate(name for names in lists.values() for name in names):
        save(root / 'images' / f'{name}.jpg', photo(seed))
        soft = np.random.default_rng(seed).integers(0, 256, (20, 26, 11)).astype(np.uint8)
        soft[0, 0], soft[0, 1] = 0, 7  # no probability at all, and all the same
        for i in range(11):
            save(root / 'labels' / name / f'{name}_lbl{i:02}.png', soft[..., i])
    for file, names in lists.items():
        (root / file).write_text(''.join(f'{i} , {name}\n' for i, name in enumerate(names, 1)) + '\n', encoding='utf-8')


def lfw_pl(root: Path, lists: Mapping[str, Sequence[tuple[str, int]]]) -> list[str | Path]:
    """Write LFW-PL with random labels, and return the converter's arguments.

    ``lists`` has persons and numbers of their photographs by list file.
    """
    images, labels, listed = root / 'lfw_funneled', root / 'parts_lfw_funneled_gt_images', root / 'lists'
    listed.mkdir(parents=True)
    for file, names in lists.items():
        (listed / file).write_text(''.join(f'{name} {number}\n' for name, number in names), encoding='utf-8')
        for seed, (name, number) in enumerate(names):
            save(images / name / f'{name}_{number:04}.jpg', photo(seed))
            truth = np.random.default_rng(seed).integers(0, 3, (20, 26))
            save(labels / f'{name}_{number:04}.ppm', np.array([[0, 0, 255], [0, 255, 0], [255, 0, 0]], np.uint8)[truth])
    return ['--images', images, '--labels', labels, '--lists', listed, '--allow-other-counts']


# Clips.


def squares(position: int, *ids: int, size: tuple[int, int] = CLIP_SIZE) -> NDArray:
    """Return a mask of squares, one per object, which move to the right."""
    mask = np.zeros(size, np.uint8)
    for i in ids:
        top, left = 2 + 9 * (i % 3), 2 + position + i % 7
        mask[top : top + 7, left : left + 8] = i
    return mask


def frame(mask: NDArray, position: int) -> NDArray:
    """Return a frame that shows the mask and its position: its red is 9 · position + 10, more or less."""
    pixels = np.stack([np.full(mask.shape, 9 * position + 10), mask * 30, 200 - mask], -1)
    return pixels.astype(np.uint8)


def clip(
    root: Path,
    name: str,
    masks: Sequence[NDArray],
    frames: str = 'JPEGImages',
    annotations: str = 'Annotations',
    numbers: Sequence[int] | None = None,
    masked: Iterable[int] | None = None,
    suffix: str = '.jpg',
) -> None:
    """Write a frame for each mask, and the masks, or those at the positions ``masked``."""
    from mmattn.video.masks import write_mask

    for position, mask in enumerate(masks):
        stem = f'{position if numbers is None else numbers[position]:05}'
        save(root / frames / name / f'{stem}{suffix}', frame(mask, position), quality=95)
        if masked is None or position in masked:
            write_mask(root / annotations / name / f'{stem}.png', mask)


def davis(root: Path, resolution: str = '240p', lists: str = 'ImageSets', **clips: Sequence[NDArray]) -> None:
    """Write DAVIS with the masks of clips by name, listed as training and validation sets."""
    for name, masks in clips.items():
        clip(root, name, masks, f'JPEGImages/{resolution}', f'Annotations/{resolution}')
    (root / lists).mkdir(parents=True)
    for part in ('train', 'val'):
        (root / lists / f'{part}.txt').write_text('\n'.join(clips) + '\n', encoding='utf-8')


def youtube_vos(
    root: Path,
    objects: Mapping[str, Mapping[int, tuple[str, int]]],
    lengths: Mapping[str, int],
    masked: Iterable[int] | None = None,
) -> None:
    """Write YouTube-VOS with every fifth frame: ``objects[clip][id] = (category, first position)``."""
    videos = {}
    for name, things in objects.items():
        masks = [squares(p, *(i for i, (_, first) in things.items() if first <= p)) for p in range(lengths[name])]
        numbers = [5 * p for p in range(lengths[name])]
        clip(root, name, masks, numbers=numbers, masked=masked)
        videos[name] = dict(
            objects={
                str(i): dict(category=category, frames=[f'{number:05}' for number in numbers[first:]])
                for i, (category, first) in things.items()
            }
        )
    (root / 'meta.json').write_text(json.dumps(dict(videos=videos)), encoding='utf-8')


# Parallel text.


def multi30k(counts: Mapping[str, int]) -> dict[str, bytes]:
    """Return Multi30k's files, with so many sentences of each, at most four."""
    return {
        f'{split}.{language}.gz': gzip.compress(text(lines[:count]))
        for split, count in counts.items()
        for language, lines in (('en', ENGLISH), ('de', GERMAN), ('fr', GERMAN))
    }


def tagged(lines: Sequence[str], language: str) -> list[str]:
    """Return the lines of an IWSLT training file: each talk has a description and some lines."""
    talk = []
    for start in range(0, len(lines), 30):
        talk += [
            f'<url>http://{language}</url>',
            '<keywords>talks, dogs</keywords>',
            '<talkid>1</talkid>',
            f'<title> {lines[start]} </title>',
            f'<description>TED: {lines[start]}</description>',
            *lines[start : start + 30],
        ]
    return talk


def xml(lines: Iterable[str]) -> bytes:
    """Return a test file of IWSLT or WMT."""
    body = [f'<seg id="{i}"> {line} </seg>' for i, line in enumerate(lines, 1)]
    return text(['<?xml version="1.0" encoding="UTF-8"?>', '<doc docid="1">', '<url>u</url>', *body, '</doc>'])


def iwslt14(tests: Sequence[str]) -> dict[str, bytes]:
    """Return IWSLT'14's files; four of its 64 training pairs are dropped or on the limit. ``tests`` are their names."""
    files = {}
    for code, sentences in dict(de=GERMAN, en=ENGLISH).items():
        body = [f'{sentences[i % 4][:-1]} {i}.' for i in range(60)]
        body[7] = 'zu lang ' * 100  # 200 tokens
        body[9] = '' if code == 'de' else 'x'
        body[11] = 'a b c d' if code == 'de' else 'a b'
        body[13] = 'a b c' if code == 'de' else 'a b'  # the largest ratio
        files[f'train.tags.de-en.{code}'] = text(tagged(body, code))
        for number, name in enumerate(tests):
            files[f'{name}.{code}.xml'] = xml([f'{name.split(".")[2]} isn’t {code} &amp; {number}', sentences[0]])
    return files


def wmt14_en_de(merges: Sequence[str], segmented: Iterable[str], published: Iterable[str]) -> dict[str, bytes]:
    """Return Google's release, segmented by some merges, with files of these stems."""
    from mmattn.language.text.subwords import TextProcessor

    files = {'bpe.32000': text(merges)}
    for code, sentences in dict(en=ENGLISH, de=GERMAN).items():
        processor = TextProcessor(code, list(merges), lowercase=False, escape=True)
        pieces = [' '.join(processor.pieces(line)) for line in sentences]
        files |= {f'{stem}.{code}': text(pieces) for stem in segmented}
        files |= {f'{stem}.{code}': text(sentences) for stem in published}
    symbols = b' '.join(files[f'train.tok.clean.bpe.32000.{code}'] for code in ('en', 'de')).decode().split()
    files['vocab.bpe.32000'] = text(['<unk>', '<s>', '</s>', *sorted(set(symbols))])
    return files


def wmt14_en_fr(corpora: Mapping[str, str]) -> dict[str, dict[str, bytes]]:
    """Return the files of each archive of WMT'14 English–French; ``corpora`` has their stems by archive.

    There are 1335 training pairs, so that the 1333rd validates.
    """
    archives: dict[str, dict[str, bytes]] = {}
    for number, (archive, stem) in enumerate(corpora.items()):
        folder = {'training-giga-fren.tar': '', 'training-parallel-un.tgz': 'un/'}.get(archive, 'training/')
        for code, word in dict(en='A dog-house', fr='Une « niche »').items():
            data = text(f'{word} {number}, {i}…' for i in range(267))
            if number == 3:
                data = data.replace(text([f'{word} 3, 5…']), b'x\n' if code == 'en' else b'un deux trois quatre cinq\n')
            if not folder:
                code, data = f'{code}.gz', gzip.compress(data)
            archives.setdefault(archive, {})[f'{folder}{stem}.{code}'] = data
    archives['test-full.tgz'] = {
        'test-full/newstest2014-fren-src.en.sgm': xml(['The dog’s house.', 'R&amp;D']),
        'test-full/newstest2014-fren-ref.fr.sgm': xml(['L’« hôtel » Dieu, l’hôte.', 'R&amp;D']),
    }
    return archives


# Region features.


def region_archive(path: Path, **changes: Any) -> dict[str, Any]:
    """Write an archive of the features of three images, and return its arrays; those in ``changes`` are replaced."""
    rng = np.random.default_rng(0)
    ids = changes.get('image_id')
    count = 3 if ids is None else len(ids)
    start = rng.integers(0, 20, (count, 4, 2))
    arrays: dict[str, Any] = dict(
        feat=rng.integers(-128, 128, (count, 4, 6)).astype(np.int8),
        step=np.float32(0.25),
        image_id=np.array([7, 2**40, 9]),
        size=np.array([(50, 40)] * count, np.int16),
        boxes=np.concatenate([start, start + rng.integers(1, 20, (count, 4, 2))], 2).astype(np.int16),
        cls=np.array([[255, 0, 79, 3]] * count, np.uint8),
        score=np.array([[0, 51, 255, 102]] * count, np.uint8),
    )
    arrays.update(changes)
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return arrays


def random_regions(seed: int, count: int, width: int = 5) -> tuple[NDArray, NDArray]:
    """Return boxes ``(count, 4)`` and features ``(count, width)`` of an image of 50×40, float32."""
    rng = np.random.default_rng(seed)
    start = rng.random((count, 2)) * 20
    boxes = np.concatenate([start, start + 1 + rng.random((count, 2)) * 18], 1).astype('<f4')
    return boxes, rng.standard_normal((count, width)).astype('<f4')


def bottom_up_line(
    image_id: object, boxes: NDArray, features: NDArray, size: tuple[int, int] = (50, 40), count: int | None = None
) -> bytes:
    """Return the line of an image in a file of bottom-up-attention features."""
    fields = (image_id, *size, len(boxes) if count is None else count)
    data = (base64.b64encode(x.tobytes()) for x in (boxes, features))
    return b'\t'.join([*(str(each).encode() for each in fields), *data]) + b'\n'


def bottom_up(path: Path, ids: Iterable[object], width: int = 6) -> Path:
    """Write a file of bottom-up-attention features of two to four regions of each image."""
    lines = (bottom_up_line(name, *random_regions(i, 2 + i % 3, width)) for i, name in enumerate(ids))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b''.join(lines))
    return path


# Captions and phrases.

CAPTION_WORDS = ('a', 'dog', 'cat', 'bird', 'runs', 'sits', 'here')


def captions(number: int) -> list[str]:
    """Return five captions of an image; its number decides which animals it shows."""
    return [
        ' '.join(
            ('a', CAPTION_WORDS[1 + (number + i // 3) % 3], CAPTION_WORDS[4 + i % 2], 'here')[: 3 + (number + i) % 2]
        )
        for i in range(5)
    ]


def karpathy(parts: Sequence[str], name: str = 'cocoid', start: int = 100) -> dict[str, Any]:
    """Return a file of Karpathy's splits with one image for each part; it has a ``cocoid`` or a ``filename``."""
    images = []
    for number, part in enumerate(parts):
        sentences = [dict(raw=f'{line.capitalize()}.', tokens=line.split()) for line in captions(number)]
        image_id: Any = start + number if name == 'cocoid' else f'{start + number}.jpg'
        images.append({name: image_id, 'split': part, 'sentences': sentences})
    return dict(images=images)


ENTITY_BOX = '<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>12</ymax></bndbox>'
ENTITY_CAPTIONS = '[/EN#1/people A man] , with [/EN#2/other a hat] .\n[/EN#2/other A hat] !\n'


def entity_annotation(size: tuple[int, int] = (50, 40)) -> str:
    """Return the annotation of an image: a box of the first entity, and none of the second."""
    width, height = size
    sides = f'<size><width>{width}</width><height>{height}</height><depth>3</depth></size>'
    return (
        f'<annotation>{sides}<object><name>1</name>{ENTITY_BOX}</object>'
        '<object><name>2</name><scene>0</scene><nobndbox>1</nobndbox></object></annotation>'
    )


def entities(root: Path, lists: Mapping[str, Iterable[object]]) -> None:
    """Write Flickr30k Entities, with the names of the images by split."""
    for split, names in lists.items():
        for name in names:
            write_files(
                {
                    f'Sentences/{name}.txt': ENTITY_CAPTIONS.encode(),
                    f'Annotations/{name}.xml': entity_annotation().encode(),
                },
                root,
            )
        write_files({f'{split}.txt': text(map(str, names))}, root)


# Questions.


def vqa_entries(images: Sequence[int], first: int = 0) -> tuple[list[dict], list[dict]]:
    """Return VQA's questions and annotations, one per image."""
    questions, annotations = [], []
    for number, image in enumerate(images, first):
        common = dict(question_id=1000 * image + number, image_id=image)
        questions.append(dict(common, question=f'Is it {number}?'))
        answers = [dict(answer=answer, answer_confidence='yes', answer_id=i) for i, answer in enumerate(TEN_ANSWERS, 1)]
        about = dict(question_type='is it', answer_type='yes/no', multiple_choice_answer='yes')
        annotations.append(dict(common, answers=answers, **about))
    return questions, annotations


def vqa(
    folder: Path, split: str, images: Sequence[int], prefix: str = 'v2_', year: str = '2014', suffix: str = ''
) -> None:
    """Write the questions of a split of VQA 2.0, or 1.0 without ``prefix``, and its answers unless it is a test."""
    questions, annotations = vqa_entries(images)
    write_json(folder / f'{prefix}OpenEnded_mscoco_{split}{year}_questions.json{suffix}', dict(questions=questions))
    if 'test' not in split:
        write_json(folder / f'{prefix}mscoco_{split}{year}_annotations.json{suffix}', dict(annotations=annotations))


def visual_genome(folder: Path, *answers: object) -> None:
    """Write Visual Genome: images 3, 5 and 99 of COCO and others, with a question for each answer."""
    images = [
        dict(image_id=1, coco_id=3),
        dict(image_id=2, coco_id=None),
        dict(id=5, coco_id=5),
        dict(image_id=6, coco_id=99),
    ]
    write_json(folder / 'image_data.json', images)
    qas = [
        dict(
            id=i, qas=[dict(qa_id=10 * i + k, question=f'{i} {k}?', answer=answer) for k, answer in enumerate(answers)]
        )
        for i in (1, 2, 5, 6, 7)
    ]
    write_json(folder / 'question_answers.json.gz', qas)


def coco_qa(folder: Path, split: str, *rows: Sequence[object]) -> None:
    """Write a split of COCO-QA: question, answer, image and type of each row."""
    for name, column in zip(('questions', 'answers', 'img_ids', 'types'), zip(*rows)):
        write_files({f'{name}.txt': text(map(str, column))}, folder / split)


def daquar(folder: Path, name: str, *rows: Sequence[str]) -> None:
    """Write a file of DAQUAR: question and answer of each row."""
    write_files({name: ''.join(f'{question}\n{answer}\n' for question, answer in rows).encode()}, folder)


def easy_vqa(folder: Path, split: str, images: Sequence[int], packed: bool, size: int = 4) -> dict[int, NDArray]:
    """Write a split of easy-VQA, in folders or packed, with one question per image. Returns the pictures."""
    pixels = {name: np.random.default_rng(name).integers(0, 256, (size, size, 3), dtype=np.uint8) for name in images}
    pictures = folder / split / 'images'
    for name, each in pixels.items():
        save(pictures / f'{name}.png', each)
    if packed:
        with zipfile.ZipFile(folder / f'{split}_images.zip', 'w') as file:
            for name in images:
                file.write(pictures / f'{name}.png', f'{name}.png')
                (pictures / f'{name}.png').unlink()
    rows = [[f'is it {name}?', 'yes', name] for name in images]
    write_json(folder / (f'{split}_questions.json.gz' if packed else f'{split}/questions.json'), rows)
    return pixels


# Word vectors.


def glove(path: Path, words: Iterable[str], width: int = 6) -> None:
    """Write GloVe vectors."""
    rng = np.random.default_rng(0)
    write_files(
        {path.name: text(f'{word} {" ".join(map(str, rng.normal(size=width)))}' for word in words)}, path.parent
    )


def skip_thought(root: Path, words: Sequence[str], word_dim: int = 12, embed_dim: int = 8) -> None:
    """Write Skip-Thought's GRU and the vectors of its words."""
    rng = np.random.default_rng(0)
    root.mkdir(parents=True, exist_ok=True)
    np.save(root / 'utable.npy', rng.normal(size=(len(words) + 1, word_dim)))
    write_files({'dictionary.txt': text(['UNK', *words])}, root)
    shapes = dict(
        W=(word_dim, 2 * embed_dim),
        Wx=(word_dim, embed_dim),
        U=(embed_dim, 2 * embed_dim),
        Ux=(embed_dim, embed_dim),
        b=(2 * embed_dim,),
        bx=(embed_dim,),
    )
    arrays = {f'encoder_{name}': rng.normal(size=shape) for name, shape in shapes.items()}
    np.savez(root / 'uni_skip.npz', **arrays)  # type: ignore[arg-type]
