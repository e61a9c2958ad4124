"""Detect attributes: the words of captions that a classifier finds in the region features of images.

    python tools/dataset_converters/caption_attributes.py data/flickr8k/dataset_flickr8k.json data/flickr8k/regions \\
        --out data/flickr8k/attributes.json

The annotation file has Karpathy's splits. The attributes are the words that the most training images have in a caption,
without function words such as articles and prepositions. The output is the best of each image, for ``attributes`` of
``mmattn.COCOCaptionDataset``::

    {image id: [[word, score], …]}      the best first; scores are probabilities

The classifier is a perceptron with one hidden layer. Its input is the mean and the maximum of an image's region
features, and the features of its largest region. Only training images and their captions train it. Each epoch is
evaluated by the mean average precision on 'val', and the best is used.

A classifier is too certain of the images that have trained it. So there are five: each is trained on four fifths of the
training images, and detects the attributes of the other fifth. The scores of other splits are the mean of the five.

The quality is printed per split, compared with the same words for all images, scored by their frequency in training.
Precision and recall can be compared between splits. The mean average precision depends on the number of images: in few
images, a rare word competes with few others.

Args:
    ann_file: dataset_*.json of Karpathy's splits, possibly .gz
    out: file to write; an existing file is an error
    num_words: words of the classifier
    num_attributes: the best per image
"""

import errno
import json
from pathlib import Path

import torch

from common.caption_attributes import (
    FOLDS,
    attribute_words,
    best_words,
    cross_predict,
    pool_regions,
    quality,
    word_targets,
)
from mmattn.language.captioning.annotations import read_annotations
from mmattn.language.regions.region_store import RegionStore
from mmattn.utils.arguments import command
from mmattn.utils.checks import check_count
from mmattn.utils.command import run
from mmattn.utils.files import check_writable, write_text


@command
def main(ann_file: Path, regions: Path, *, out: Path, num_words: int = 1000, num_attributes: int = 20) -> None:
    check_count('--num-words', num_words)
    check_count('--num-attributes', num_attributes)
    if out.exists():
        raise FileExistsError(errno.EEXIST, 'this exists already; choose another --out', str(out))
    annotations = read_annotations(ann_file)
    splits = ['train' if annotation.split == 'restval' else str(annotation.split) for annotation in annotations]
    if missing := {'train', 'val'} - set(splits):
        raise ValueError(f"{ann_file}: no split {' and '.join(sorted(missing))}; Karpathy's splits are required")
    store = RegionStore(regions)
    store.check((annotation.image_id for annotation in annotations), features=False)
    check_writable(out.parent)
    rows = {split: torch.tensor([i for i, name in enumerate(splits) if name == split]) for split in sorted(set(splits))}
    if len(rows['train']) < FOLDS:
        raise ValueError(f'{ann_file}: {len(rows["train"])} training images; at least {FOLDS} are required')
    words = attribute_words([annotations[i] for i in rows['train']], num_words)
    if len(words) < num_attributes:
        raise ValueError(f'--num-attributes must be at most {len(words)}, the number of words; got {num_attributes}')
    targets = word_targets(annotations, words)
    if not targets[rows['val']].any():
        raise ValueError(f'{ann_file}: the captions of val have none of the {len(words):,} words')
    inputs = pool_regions(store, [annotation.image_id for annotation in annotations])
    torch.manual_seed(0)
    scores = cross_predict(inputs, targets, rows['train'], rows['val'])
    prior = targets[rows['train']].float().mean(0).expand_as(scores)
    print(f'{len(words):,} words, from {words[0]} to {words[-1]}')
    for split, which in rows.items():
        for name, method_scores in (('classifier', scores), ('frequency', prior)):
            average, precision, recall = quality(method_scores[which], targets[which], num_attributes)
            print(
                f'{split}, {len(which):,} images, {name}: mean average precision {average:.4f}; best '
                f'{num_attributes}: precision {precision:.4f}, recall {recall:.4f}'
            )
    best_attributes = best_words(scores, words, num_attributes)
    text = json.dumps({item.image_id: best for item, best in zip(annotations, best_attributes)}, ensure_ascii=False)
    write_text(out, text)
    print(f'{out}: {len(best_attributes):,} images')


if __name__ == '__main__':
    run(main)
