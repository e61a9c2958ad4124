"""Tiny releases of the language data sets, in their published layouts: texts, region features, captions, questions."""

import base64
import gzip
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .releases import save, text, write_files, write_json

ENGLISH = ['A dog runs.', 'The dogs run, and the dog barks.', 'Men\u2028run.', "A man's hat."]
GERMAN = ['Ein Hund läuft.', 'Die Hunde laufen, und der Hund bellt.', 'Männer laufen.', 'Der Hut eines Mannes.']
TEN_ANSWERS = ['yes'] * 7 + ['no', 'maybe', 'café']


# Parallel text.


def multi30k(counts: Mapping[str, int]) -> dict[str, bytes]:
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
    lines = [('a', CAPTION_WORDS[1 + (number + i // 3) % 3], CAPTION_WORDS[4 + i % 2], 'here') for i in range(5)]
    return [' '.join(line[: 3 + (number + i) % 2]) for i, line in enumerate(lines)]


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
            files = {f'Sentences/{name}.txt': ENTITY_CAPTIONS, f'Annotations/{name}.xml': entity_annotation()}
            write_files({path: content.encode() for path, content in files.items()}, root)
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
    images = [dict(image_id=i, coco_id=coco_id) for i, coco_id in ((1, 3), (2, None), (6, 99))]
    write_json(folder / 'image_data.json', [*images, dict(id=5, coco_id=5)])
    questions = []
    for i in (1, 2, 5, 6, 7):
        qas = [dict(qa_id=10 * i + k, question=f'{i} {k}?', answer=answer) for k, answer in enumerate(answers)]
        questions.append(dict(id=i, qas=qas))
    write_json(folder / 'question_answers.json.gz', questions)


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
    lines = [f'{word} {" ".join(map(str, rng.normal(size=width)))}' for word in words]
    write_files({path.name: text(lines)}, path.parent)


def skip_thought(root: Path, words: Sequence[str], word_dim: int = 12, embed_dim: int = 8) -> None:
    """Write Skip-Thought's GRU and the vectors of its words."""
    rng = np.random.default_rng(0)
    root.mkdir(parents=True, exist_ok=True)
    np.save(root / 'utable.npy', rng.normal(size=(len(words) + 1, word_dim)))
    write_files({'dictionary.txt': text(['UNK', *words])}, root)
    shapes: dict[str, tuple[int, ...]] = {}
    for suffix, width in (('', 2 * embed_dim), ('x', embed_dim)):
        shapes |= {f'W{suffix}': (word_dim, width), f'U{suffix}': (embed_dim, width), f'b{suffix}': (width,)}
    arrays = {f'encoder_{name}': rng.normal(size=shape) for name, shape in shapes.items()}
    np.savez(root / 'uni_skip.npz', **arrays)  # type: ignore[arg-type]
