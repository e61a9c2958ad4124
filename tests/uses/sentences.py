"""Text, vocabularies, regions, questions and captions as people have them."""

import torch

from mmattn.language import LengthPenalty, Regions, RegionStore, RegionWriter, TokenEmbedding, Vocabulary, token_batches
from mmattn.language.regions.region_store import clip_boxes, grid_boxes
from mmattn.language.text import words
from mmattn.language.text.text_files import read_lines, split_symbols

from . import error, later, works


@later
def text(folder, content, encoding='utf-8'):
    (folder / 't.txt').write_bytes(content.encode(encoding))
    return read_lines(folder / 't.txt')


@later
def vocabulary(folder, content):
    (folder / 'v.txt').write_text(content, encoding='utf-8', newline='')
    return len(Vocabulary.from_file(folder / 'v.txt'))


def regions(count=2, width=3, boxes=None, size=(50, 40), value=1.0):
    if boxes is None:
        boxes = torch.tensor([[1.0, 1.0, 9.0, 9.0]]).repeat(count, 1)
    return Regions(torch.full((count, width), value), boxes, size)


@later
def store(folder, *images, check=(), features=None, float16=False):
    """Write regions of images, and check the store."""
    with RegionWriter(folder / 's', 'uses', float16=float16) as writer:
        for image_id, content in images:
            writer.write(image_id, content)
    opened = RegionStore([folder / 's'])
    opened.check(check or [image_id for image_id, _ in images], num_features=features)
    return [list(opened[image_id][0].shape) for image_id, _ in images]


def truncated(folder):
    """A store whose longest file is cut."""
    store(('1', regions()))(folder)
    path = max((folder / 's').iterdir(), key=lambda path: path.stat().st_size)
    path.write_bytes(path.read_bytes()[:-4])
    RegionStore([folder / 's']).check(['1'])


def embedded(*tokens):
    torch.manual_seed(0)
    return TokenEmbedding(8, 6)(torch.tensor([tokens])).shape


USES = {
    'text files': [
        works('CRLF', text('a\r\nb\r\n'), ['a', 'b']),
        works('a byte order mark', text('\ufeffa\nb\n'), ['a', 'b']),
        works('no end of the last line', text('a\nb'), ['a', 'b']),
        works('line separators of Unicode', text('a\u2028b\x85c\nd\n'), ['a\u2028b\x85c', 'd']),
        works('empty', text(''), []),
        error('Latin-1', text('a\nMaß\n', 'latin-1'), r't\.txt, line 2.*UTF-8'),
        error('UTF-16', text('a b\n', 'utf-16'), r't\.txt.*UTF-8'),
    ],
    'symbols': [
        works('several spaces', lambda _: split_symbols('  a   b '), ['a', 'b']),
        works(
            'composed and decomposed umlauts',
            lambda _: words.normalize_unicode('u\u0308') == words.normalize_unicode('ü'),
        ),
    ],
    'question words': [
        works(
            'BAN, punctuation',
            lambda _: words.ban_words("What's on the man's head?"),
            ['what', "'s", 'on', 'the', 'man', "'s", 'head'],
        ),
        works(
            'MCAN, a slash and a hyphen',
            lambda _: words.mcan_words('Is it on/off t-shirt?'),
            ['is', 'it', 'on', 'off', 't', 'shirt'],
        ),
        works('an emoji alone', lambda _: words.ban_words('😀'), ['😀']),
        works('nothing', lambda _: words.mcan_words('?'), []),
    ],
    'vocabulary': [
        works('with counts', vocabulary('a 3\nb 2\n'), 6),
        error('a word twice', vocabulary('a\nb\na\n'), r'v\.txt, line 3.*line 1'),
        error('a count that is none', vocabulary('a x\n'), r'v\.txt, line 1'),
        error('a special symbol', vocabulary('a\n<pad>\n'), r'v\.txt, line 2.*<pad>'),
        error('tabs before the counts', vocabulary('a\t3\nb\t2\n'), r'v\.txt, line 1'),
        works('an unknown word', lambda _: Vocabulary(['a']).encode('a z'), [4, 3, 2]),
    ],
    'batches of sentences': [
        works('one of each length', lambda _: token_batches([(1,), (2,)], 4), [[0, 1]]),
        works('none', lambda _: token_batches([], 4), []),
        error('a sentence that is too long', lambda _: token_batches([(9,)], 4), 'max_tokens.*9'),
    ],
    'length penalty': [
        works('no effect', lambda _: LengthPenalty(0)(9), 1),
        error('not a number', lambda _: LengthPenalty(float('nan')), 'alpha'),
        error('a misspelt kind', lambda _: LengthPenalty(1, 'gmnt'), "kind.*'gmnt'"),
    ],
    'token embedding': [
        works('a sentence', lambda _: embedded(4, 5, 2), (1, 3, 6)),
        error('a number beyond the vocabulary', lambda _: embedded(4, 8), '8|range'),
    ],
    'region store': [
        works('two images', store(('1', regions()), ('2', regions(3))), [[2, 3], [3, 3]]),
        works('half precision', store(('1', regions(value=0.1)), float16=True), [[2, 3]]),
        works('ids with slashes and umlauts', store(('train/ü 1', regions())), [[2, 3]]),
        error('an image without regions', store(('1', regions(0)), ('2', regions())), '1.*no regions'),
        error('an image twice', store(('1', regions()), ('1', regions())), '1'),
        error('two widths', store(('1', regions()), ('2', regions(width=4))), r'2.*(3|4)'),
        error('NaN', store(('1', regions(value=float('nan')))), '1.*(NaN|nan|finite)'),
        error('beyond half precision', store(('1', regions(value=1e6)), float16=True), '1.*(inf|finite|65|float16)'),
        error(
            'boxes in the order x, y, width, height',
            store(('1', regions(1, boxes=torch.tensor([[30.0, 20.0, 9.0, 9.0]])))),
            '1.*box',
        ),
        error('images that are missing', store(('1', regions()), check=['1', '7']), '7'),
        error('another width than the model', store(('1', regions()), features=2048), '2048'),
        error('a truncated file', truncated, r's/|bytes|trunc|size'),
        error('no such folder', lambda f: RegionStore([f / 'none']).check(['1']), 'none'),
    ],
    'boxes of regions': [
        works(
            'outside of the image',
            lambda _: clip_boxes(torch.tensor([[60.0, 50.0, 70.0, 60.0]]), (50, 40)).tolist(),
            [[49.0, 39.0, 50.0, 40.0]],
        ),
        works('a grid of one cell', lambda _: grid_boxes((50, 40), 1).tolist(), [[0.0, 0.0, 50.0, 40.0]]),
    ],
}
