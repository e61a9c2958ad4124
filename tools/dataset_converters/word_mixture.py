"""Word vectors of twice the channels: GloVe, and a mixture of the GloVe vectors of the words of the same sentences.

    python tools/dataset_converters/word_mixture.py glove.6B.300d.txt data/vqa2/questions_{train,val,test}.json \\
        --more data/vqa2/questions_genome_{train,val}.json --captions annotations/captions_{train,val}2014.json \\
        --out data/vqa2/word_vectors_600.txt

The vocabulary is that of the questions. Each pair of positions of a sentence, with the words w and w', adds 1/df(w') to
A[w, w'] and 1/df(w) to A[w', w], where df is the number of occurrences of a word in all sentences: questions, further
questions and captions. Rows of A are divided by their sum, and a word has the vector [g(w), Σ_w' A[w, w'] g(w')], for
``mmattn.WordVectorHook``. Words that GloVe does not have, and the mixture of words without another one in a sentence,
are 0.

Source: "Bilinear Attention Networks", 2018, appendix. Its code adds 1 for each pair in place of 1/df (--plain-counts).

The output is text, one word and its numbers per line. It is written atomically; an existing file is an error.

Args:
    vectors: text file of word vectors, such as GloVe, possibly .gz
    questions: files of questions, whose words are written
    more: files of further questions
    captions: annotation files of captions
    out: file to write; an existing file is an error
"""

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor

from mmattn.language.captioning.annotations import read_annotations
from mmattn.language.text.text_files import iter_lines
from mmattn.language.text.words import ban_words, question_words
from mmattn.language.vqa.questions import read_questions
from mmattn.language.vqa.word_vectors import read_word_vectors
from mmattn.utils.arguments import command
from mmattn.utils.command import run
from mmattn.utils.files import atomic_write, check_writable
from mmattn.utils.progress import track

Files = Annotated[list[Path], dict(nargs='*')]
CHUNK = 10_000  # sentences


def mix(sentences: Sequence[Sequence[int]], vectors: Tensor, plain_counts: bool = False) -> Tensor:
    """Return A·G, float64 ``(V, C)``: for each word, the weighted mean of the vectors of its companions.

    Args:
        sentences (sequence of sequence of int): the numbers of the words of each sentence.
        vectors (Tensor): G, ``(V, C)``.
        plain_counts (bool): add 1 for each pair, not 1/df. Defaults to False.

    Example:
        >>> mix([[0, 1, 1], [0, 2]], torch.eye(3), plain_counts=True)[0]
        tensor([0.0000, 0.6667, 0.3333], dtype=torch.float64)
    """
    size = len(vectors)
    counts = torch.bincount(torch.tensor([i for words in sentences for i in words], dtype=torch.long), minlength=size)
    weights = torch.ones(size).double() if plain_counts else 1 / counts.clamp(min=1).double()
    # The last channel is the sum of the weights.
    weighted = torch.cat([vectors.double(), torch.ones(size, 1).double()], 1) * weights[:, None]
    mixed = torch.zeros_like(weighted)
    for start in track(range(0, len(sentences), CHUNK), 'Mixing'):
        part = sentences[start : start + CHUNK]
        words = torch.tensor([i for sentence in part for i in sentence], dtype=torch.long)
        lengths = torch.tensor([len(sentence) for sentence in part])
        word_vectors = weighted[words]
        sentence_numbers = torch.arange(len(part)).repeat_interleave(lengths)
        total = torch.zeros(len(part), word_vectors.shape[1]).double().index_add_(0, sentence_numbers, word_vectors)
        mixed.index_add_(0, words, total[sentence_numbers] - word_vectors)  # of all other positions
    # The difference of equal sums may be a rounding error.
    alone = torch.ones(size, dtype=torch.bool)
    alone[[i for sentence in sentences if len(sentence) > 1 for i in sentence]] = False
    sums = mixed[:, -1:].masked_fill(alone[:, None], 1)
    return mixed[:, :-1].masked_fill(alone[:, None], 0) / sums


@command
def main(
    vectors: Path,
    questions: list[Path],
    *,
    more: Files = [],
    captions: Files = [],
    plain_counts: bool = False,
    out: Path,
) -> None:
    if out.exists():
        raise FileExistsError(errno.EEXIST, 'this exists already; choose another --out', str(out))
    check_writable(out.parent)
    texts = [question.question for path in questions for question in read_questions(path)]
    vocabulary = question_words(texts, 'ban')
    texts += [question.question for path in more for question in read_questions(path)]
    texts += [text for path in captions for annotation in read_annotations(path) for text in annotation.captions]
    numbers = {word: number for number, word in enumerate(vocabulary)}
    sentences = [[numbers.setdefault(word, len(numbers)) for word in ban_words(text)] for text in texts]
    dim = len(next(iter_lines(vectors), '').split()) - 1
    if dim < 1:
        raise ValueError(f'{vectors}, line 1: expected a word and its numbers')
    in_file = read_word_vectors(vectors, numbers, dim)
    absent = torch.zeros(dim)
    stacked = torch.stack([in_file.get(word, absent) for word in numbers])
    both = torch.cat([stacked, mix(sentences, stacked, plain_counts).float()], 1)
    with atomic_write(out) as temporary, open(temporary, 'w', encoding='utf-8') as file:
        for word, row in zip(vocabulary, both.tolist()):
            file.write(f'{word} {" ".join(f"{x:.6g}" for x in row)}\n')
    print(
        f'{out}: {len(vocabulary):,} words with {2 * dim} numbers, of {len(sentences):,} sentences with '
        f'{len(numbers):,} words; {sum(word in in_file for word in vocabulary):,} are in {vectors}'
    )


if __name__ == '__main__':
    run(main)
