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
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from mmattn.language.captioning.annotations import Annotation, read_annotations
from mmattn.language.regions.region_store import RegionStore
from mmattn.utils.arguments import command
from mmattn.utils.checks import check_count
from mmattn.utils.command import run
from mmattn.utils.files import check_writable, write_text
from mmattn.utils.progress import track

FUNCTION_WORDS = """
    a an the this that these those some it its he him his she her hers they them their theirs who which what
    is are was were be been being am has have having had do does doing can could will would may
    in on of with at by from for to into onto and or but as while so than if when where there here not
"""
FOLDS = 5
EPOCHS = 30
BATCH = 128
HIDDEN = 512


def attribute_words(annotations: Sequence[Annotation], num_words: int) -> list[str]:
    """Return the words that the most images have in a caption, without function words, the most frequent first."""
    in_captions = ({word for words in annotation.words for word in words} for annotation in annotations)
    counts = Counter(word for words in in_captions for word in words)
    words_by_count = sorted(counts.keys() - FUNCTION_WORDS.split(), key=lambda word: (-counts[word], word))
    return words_by_count[:num_words]


def word_targets(annotations: Sequence[Annotation], words: Sequence[str]) -> Tensor:
    """Return which words are in the captions of which images, bool ``(images, words)``."""
    numbers = {word: number for number, word in enumerate(words)}
    targets = torch.zeros(len(annotations), len(words), dtype=torch.bool)
    for row, annotation in zip(targets, annotations):
        row[[numbers[word] for caption in annotation.words for word in caption if word in numbers]] = True
    return targets


def pool_regions(store: RegionStore, image_ids: Sequence[str]) -> Tensor:
    """Return mean and maximum of the region features, and the features of the largest region, ``(images, 3·D)``."""
    pooled = torch.empty(len(image_ids), 3 * store.num_features)
    for row, name in zip(pooled, track(image_ids, 'Pooling')):
        features, boxes, *_ = store[name]
        area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
        torch.cat([features.mean(0), features.amax(0), features[area.argmax()]], out=row)
    return pooled


def average_precision(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the average precision of each word.

    That is the mean, over the images with the word, of the precision among all images with at least their score. So a
    word with equal scores has the share of its images.

    Args:
        scores (Tensor): ``(images, words)``.
        targets (Tensor): bool ``(images, words)``.

    Returns:
        Tensor: float32 ``(words)``; NaN for words without an image.
    """
    order = scores.argsort(0, descending=True)
    ordered, hits = scores.gather(0, order), targets.gather(0, order).float()
    precision = hits.cumsum(0) / torch.arange(1, len(scores) + 1)[:, None]
    places = torch.arange(len(scores))[:, None].expand_as(scores).clone()
    places[:-1][ordered[:-1] == ordered[1:]] = len(scores)
    last = places.flip(0).cummin(0).values.flip(0)  # of the images with equal scores
    return (precision.gather(0, last) * hits).sum(0) / hits.sum(0)


def quality(scores: Tensor, targets: Tensor, num_attributes: int) -> tuple[float, float, float]:
    """Return mean average precision, and the mean precision and recall of an image's best attributes.

    Words without an image do not count for the first, and images without a word not for the last.
    """
    hits = targets.gather(1, scores.topk(num_attributes, 1).indices).sum(1)
    recall = hits / targets.sum(1)
    blocks = zip(scores.split(100, 1), targets.split(100, 1))  # of words, to save memory
    average = torch.cat([average_precision(*block) for block in blocks]).nanmean()
    return float(average), float(hits.float().mean() / num_attributes), float(recall.nanmean())


def train(inputs: Tensor, targets: Tensor, val_inputs: Tensor, val_targets: Tensor, name: str) -> nn.Module:
    """Return the classifier of the epoch with the best mean average precision on validation images."""
    words = targets.shape[1]
    model = nn.Sequential(
        nn.Dropout(0.2), nn.Linear(inputs.shape[1], HIDDEN), nn.ReLU(), nn.Dropout(0.5), nn.Linear(HIDDEN, words)
    )
    output = model[-1]
    frequency = (targets.sum(0) + 1) / (len(targets) + 2)
    nn.init.zeros_(output.weight)  # so the first scores are the frequencies
    with torch.no_grad():
        output.bias.copy_(frequency.logit())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.1)
    best, state = -1.0, model.state_dict()
    for _ in track(range(EPOCHS), name):
        model.train()
        for batch in torch.randperm(len(inputs)).split(BATCH):
            loss = binary_cross_entropy_with_logits(model(inputs[batch]), targets[batch].float()) * words
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        average = float(average_precision(predict(model, val_inputs), val_targets).nanmean())
        if average > best:
            best, state = average, {key: value.clone() for key, value in model.state_dict().items()}
    model.load_state_dict(state)
    return model


@torch.no_grad()
def predict(model: nn.Module, inputs: Tensor) -> Tensor:
    return model(inputs).sigmoid()


def cross_predict(inputs: Tensor, targets: Tensor, training: Tensor, validation: Tensor) -> Tensor:
    """Return the probabilities of the words for all images, of a training image by a classifier that has not seen it.

    Args:
        inputs (Tensor): ``(images, features)``.
        targets (Tensor): bool ``(images, words)``.
        training, validation (Tensor): indices of the images that train the classifiers, and that choose the epoch.
    """
    mean, deviation = inputs[training].mean(0), inputs[training].std(0).clamp(min=1e-6)
    inputs = (inputs - mean) / deviation
    scores = torch.zeros(targets.shape)
    unseen = torch.ones(len(inputs), dtype=torch.bool).index_fill_(0, training, False)
    folds = training[torch.randperm(len(training))].tensor_split(FOLDS)
    for i, fold in enumerate(folds):
        other_folds = torch.cat([*folds[:i], *folds[i + 1 :]])
        name = f'Classifier {i + 1}'
        model = train(inputs[other_folds], targets[other_folds], inputs[validation], targets[validation], name).eval()
        scores[fold] = predict(model, inputs[fold])
        scores[unseen] += predict(model, inputs[unseen]) / FOLDS
    return scores


def best_words(scores: Tensor, words: Sequence[str], num_attributes: int) -> list[list[list]]:
    """Return ``[[word, score], …]`` of each image, the best first."""
    values, indices = scores.topk(num_attributes, 1)
    return [[[words[j], round(value, 4)] for value, j in zip(*pair)] for pair in zip(values.tolist(), indices.tolist())]


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
