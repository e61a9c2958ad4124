"""Attributes: the words of captions that classifiers find in the region features of images.

The classifier is a perceptron with one hidden layer. Its input is the mean and the maximum of an image's region
features, and the features of its largest region. Each epoch is evaluated by the mean average precision, and the best
is used. There are five classifiers, because one is too certain of the images that have trained it.
"""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from mmattn.language.captioning.annotations import Annotation
from mmattn.language.regions.region_store import RegionStore
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
    """List the words that the most images have in a caption, without function words, the most frequent first."""
    in_captions = ({word for words in annotation.words for word in words} for annotation in annotations)
    counts = Counter(word for words in in_captions for word in words)
    words_by_count = sorted(counts.keys() - FUNCTION_WORDS.split(), key=lambda word: (-counts[word], word))
    return words_by_count[:num_words]


def word_targets(annotations: Sequence[Annotation], words: Sequence[str]) -> Tensor:
    """Mark which words are in the captions of which images, bool ``(images, words)``."""
    numbers = {word: number for number, word in enumerate(words)}
    targets = torch.zeros(len(annotations), len(words), dtype=torch.bool)
    for row, annotation in zip(targets, annotations):
        row[[numbers[word] for caption in annotation.words for word in caption if word in numbers]] = True
    return targets


def pool_regions(store: RegionStore, image_ids: Sequence[str]) -> Tensor:
    """Pool the region features of images: mean, maximum, and the features of the largest region, ``(images, 3·D)``."""
    pooled = torch.empty(len(image_ids), 3 * store.num_features)
    for row, name in zip(pooled, track(image_ids, 'Pooling')):
        features, boxes, *_ = store[name]
        area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
        torch.cat([features.mean(0), features.amax(0), features[area.argmax()]], out=row)
    return pooled


def average_precision(scores: Tensor, targets: Tensor) -> Tensor:
    """Compute the average precision of each word.

    It is the mean, over the images with the word, of the precision among all images with at least their score. So a
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
    """Compute mean average precision, and the mean precision and recall of an image's best attributes.

    Words without an image do not count for the first, and images without a word not for the last.
    """
    hits = targets.gather(1, scores.topk(num_attributes, 1).indices).sum(1)
    recall = hits / targets.sum(1)
    blocks = zip(scores.split(100, 1), targets.split(100, 1))  # of words, to save memory
    average = torch.cat([average_precision(*block) for block in blocks]).nanmean()
    return float(average), float(hits.float().mean() / num_attributes), float(recall.nanmean())


def train(inputs: Tensor, targets: Tensor, val_inputs: Tensor, val_targets: Tensor, name: str) -> nn.Module:
    """Train a classifier, and keep the epoch with the best mean average precision on validation images."""
    words = targets.shape[1]
    hidden, output = nn.Linear(inputs.shape[1], HIDDEN), nn.Linear(HIDDEN, words)
    model = nn.Sequential(nn.Dropout(0.2), hidden, nn.ReLU(), nn.Dropout(0.5), output)
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
    """Predict the probability of each word, ``(images, words)``."""
    return model(inputs).sigmoid()


def cross_predict(inputs: Tensor, targets: Tensor, training: Tensor, validation: Tensor) -> Tensor:
    """Predict the probabilities of the words for all images, of a training image by a classifier that has not seen it.

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
    """Select ``[[word, score], …]`` of each image, the best first."""
    values, indices = scores.topk(num_attributes, 1)
    return [[[words[j], round(value, 4)] for value, j in zip(*pair)] for pair in zip(values.tolist(), indices.tolist())]
