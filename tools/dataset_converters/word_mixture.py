"""Word vectors of twice the channels: GloVe, and a mixture of the GloVe vectors of the words of the same sentences.

    python tools/dataset_converters/word_mixture.py glove.6B.300d.txt data/vqa2/questions_{train,val,test}.json \\
        --more data/vqa2/questions_genome_{train,val}.json --captions annotations/captions_{train,val}2014.json \\
        --out data/vqa2/word_vectors_600.txt

``mmattn.WordVectorHook`` does this by itself with ``mixture``, a list of such files. With the file that this command
writes, a training starts sooner.

The vocabulary is that of the questions, and ``mmattn.language.vqa.word_vectors.mix_vectors`` computes the mixture.
Words that GloVe does not have, and the mixture of words without another one in a sentence, are 0.

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
from itertools import chain
from pathlib import Path
from typing import Annotated

from mmattn.language.captioning.annotations import read_annotations
from mmattn.language.text.text_files import iter_lines
from mmattn.language.text.words import ban_words, question_words
from mmattn.language.vqa.questions import read_questions
from mmattn.language.vqa.word_vectors import read_mixed_vectors
from mmattn.utils.arguments import command
from mmattn.utils.command import run
from mmattn.utils.files import atomic_write, check_writable

Files = Annotated[list[Path], dict(nargs='*')]


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
    sentences = [ban_words(text) for text in texts]
    dim = len(next(iter_lines(vectors), '').split()) - 1
    if dim < 1:
        raise ValueError(f'{vectors}, line 1: expected a word and its numbers')
    rows = read_mixed_vectors(vectors, vocabulary, dim, sentences, plain_counts)
    with atomic_write(out) as temporary, open(temporary, 'w', encoding='utf-8') as file:
        for word, row in rows.items():
            file.write(f'{word} {" ".join(f"{x:.6g}" for x in row.tolist())}\n')
    known, words = sum(bool(row[:dim].any()) for row in rows.values()), len({*vocabulary, *chain(*sentences)})
    print(
        f'{out}: {len(rows):,} words with {2 * dim} numbers, of {len(sentences):,} sentences with {words:,} words; '
        f'{known:,} are in {vectors}'
    )


if __name__ == '__main__':
    run(main)
