"""Random changes of files: of one node of what they hold, where they have a structure, and of their bytes.

A file with a structure is decoded to a tree of dicts, lists, texts, numbers and bytes. It is encoded again with lengths
and checksums that fit, so that a change comes as far as the reader of the content.
"""

import ast
import copy
import gzip
import io
import json
import random
import re
import struct
import zipfile
import zlib
from xml.etree import ElementTree

import numpy as np

NUMBERS = (0, -1, 1, 255, 256, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 10**30, -(10**30), 0.5, 1e308, 1e-320)
DEEP, ENTITIES = '<deep>', '<entities>'  # what makes a recursive reader fail, and an expanding one ask for much
WORDS = ('', ' ', 'x', '\ud800', '\0', 'a\nb', '٣', '../../x', '1e999', '-0', 'nan', 'é' * 9, '9' * 5000, 'a' * 10**5)
WORDS += ('|O', '<f2', '<c16', '|S1000000000', DEEP, ENTITIES)
VALUES = (None, True, False, *NUMBERS, float('nan'), float('inf'), *WORDS, [], {}, [None], [[]], {'': None})
UNFIT = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError, struct.error)  # of a format


def generator(*seed):
    return random.Random(' '.join(map(str, seed)))


def shorten(value):
    text = repr(value)
    return text if len(text) <= 40 else f'{text[:20]}… ({len(text)})'


def change(rng, name, data):
    """Change the content of a file of this name, and return it with a description."""
    if name.endswith('.gz') and data and rng.random() < 0.7:
        content, what = change(rng, name.removesuffix('.gz'), gzip.decompress(data))
        return gzip.compress(content, 1), what
    decode, encode = next((codec for matches, *codec in CODECS if matches(name, data)), (None, None))
    while decode and rng.random() < 0.7:
        tree, what = change_tree(rng, decode(data))
        try:
            return encode(tree), what
        except UNFIT:  # another change
            continue
    return change_bytes(rng, data)


def change_bytes(rng, data):
    start, end = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    kind = rng.choice(('flip', 'set', 'cut', 'delete', 'repeat', 'insert', 'number', 'append'))
    if kind in ('set', 'number'):
        end = min(end, start + rng.choice((1, 2, 4, 8, 16, 64)))
    new = {
        'flip': lambda: (
            bytes(byte ^ (1 << rng.randrange(8)) for byte in data[start : start + 1]) + data[start + 1 : end]
        ),
        'set': lambda: bytes([rng.choice((0, 1, 127, 128, 255))]) * (end - start),
        'cut': lambda: b'',
        'delete': lambda: b'',
        'repeat': lambda: data[start:end][: 10**5] * rng.choice((2, 3, 50)),
        'insert': lambda: rng.randbytes(rng.choice((1, 3, 50))) + data[start:end],
        'number': lambda: int(rng.choice(NUMBERS[:9]) % 2**64).to_bytes(8, rng.choice(('little', 'big'))),
        'append': lambda: data[start:] + rng.choice((data, bytes(100), b'\n', b'x')),
    }[kind]()
    return data[:start] + new + (
        b'' if kind in ('cut', 'append') else data[end:]
    ), f'{kind} {start}…{end} of {len(data)}'


def places(tree, where=()):
    """Yield the places of all nodes but the root: their containers and keys."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield tree, key, (*where, key)
        if isinstance(value, dict | list):
            yield from places(value, (*where, key))


def similar(rng, container, old):
    """A value that only a check of its type or range tells from a sound one."""
    if isinstance(old, bytes):
        name = str(container[0]) if isinstance(container, list) else ''
        return bytes(2 * 10**7) if rng.random() < 0.03 else change(rng, name, old)[0]
    if isinstance(old, str):
        return rng.choice((old.upper(), old * 1000, [old], f' {old}', old[:-1], old.encode('utf-8', 'replace').hex()))
    if isinstance(old, int | float):
        return rng.choice((-old, old * 1000, old + 0.5, str(old), [old], old + 1, bool(old)))
    return rng.choice(VALUES)


def change_tree(rng, tree):
    """Change one node of a tree in place, and return it with a description."""
    if not tree or not isinstance(tree, dict | list) or rng.random() < 0.02:
        return rng.choice(VALUES), 'the root'
    container, key, where = rng.choice([*places(tree)])
    kind, old = (
        rng.choice(('value', 'value', 'similar', 'similar', 'delete', 'repeat', 'rename', 'move')),
        container[key],
    )
    if isinstance(old, bytes) and kind == 'value':
        kind = 'similar'
    if kind == 'delete':
        del container[key]
    elif kind == 'repeat' and isinstance(container, list):
        at = rng.randrange(len(container) + 1)
        container[at:at] = [old] * rng.choice((1, 1, 1, 10**4 if isinstance(old, str) else 1))
    elif kind == 'rename' and isinstance(container, dict):
        container[rng.choice(('', 'x', '-1', '٣', '\ud800', f' {key}'))] = container.pop(key)
    elif kind == 'move':
        container[key] = copy.deepcopy(rng.choice([*places(tree)])[0])
    elif kind == 'similar':
        container[key] = similar(rng, container, old)
    else:
        container[key] = rng.choice(VALUES)
    new = kind if kind in ('delete', 'repeat', 'rename') else shorten(container[key])
    return tree, f'{".".join(map(str, where))}: {shorten(old)} → {new}'


def decode_lines(data):
    """The fields of each line, and what separates them."""
    return [re.split(r'([ \t,])', line) for line in data.decode('utf-8', 'surrogateescape').split('\n')]


def encode_lines(tree):
    return '\n'.join(''.join(map(str, line)) for line in tree).encode('utf-8', 'surrogatepass')


def encode_json(tree):
    text = json.dumps(tree, ensure_ascii=False).replace(f'"{DEEP}"', '[' * 10**5 + ']' * 10**5)
    return text.encode('utf-8', 'surrogatepass')


def decode_xml(element):
    """Tag, text and elements of an element."""
    return [element.tag, element.text or '', [*map(decode_xml, element)]]


def encode_xml(tree):
    def text(element):
        tag, inside, elements = element
        return f'<{tag}>{inside}{"".join(map(text, elements))}</{tag}>'

    entities = ''.join(f'<!ENTITY e{i} "{f"&e{i - 1};" * 10 if i else "aaaaaaaaaa"}">' for i in range(12))
    whole = text(tree).replace(DEEP, '<a>' * 10**5 + '</a>' * 10**5)
    if ENTITIES in whole:
        whole = f'<!DOCTYPE r [{entities}]>{whole.replace(ENTITIES, "&e11;")}'
    return whole.encode('utf-8', 'surrogatepass')


def decode_png(data):
    """Name and content of each chunk: the fields of the header, and the pixels without compression."""
    chunks, at = [], 8
    while at < len(data):
        (size,) = struct.unpack('>I', data[at : at + 4])
        chunks.append([data[at + 4 : at + 8].decode(), data[at + 8 : at + 8 + size]])
        at += size + 12
    of = dict(IHDR=lambda content: [*struct.unpack('>IIBBBBB', content)], IDAT=zlib.decompress)
    return [[name, of.get(name, bytes)(content)] for name, content in chunks]


def encode_png(tree):
    packed = b'\x89PNG\r\n\x1a\n'
    for name, content in tree:
        if isinstance(content, list):
            content = struct.pack('>IIBBBBB', *content)
        named = name.encode('ascii') + (zlib.compress(content, 1) if name == 'IDAT' else content)
        packed += struct.pack('>I', len(named) - 4) + named + struct.pack('>I', zlib.crc32(named))
    return packed


def decode_npy(data):
    """The header, and the type and the values of an array."""
    array = np.load(io.BytesIO(data), allow_pickle=False)
    (size,) = struct.unpack('<H', data[8:10])
    header = ast.literal_eval(data[10 : 10 + size].decode())
    return [dict(header, shape=[*header['shape']]), array.dtype.str, array.ravel().tolist()]


def encode_npy(tree):
    header, dtype, values = tree
    with np.errstate(all='ignore'):
        data = np.array(values).astype(dtype).tobytes()
    text = repr(dict(header, shape=tuple(header['shape'])) if 'shape' in header else header).encode() + b'\n'
    return b'\x93NUMPY\x01\x00' + struct.pack('<H', len(text)) + text + data


def decode_zip(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [[entry.filename, archive.read(entry)] for entry in archive.infolist()]


def encode_zip(tree):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, 'w') as archive:
        for name, content in tree:
            archive.writestr(zipfile.ZipInfo(name), content)
    return packed.getvalue()


CODECS = (  # of which files, to a tree, and back
    (lambda name, data: name.endswith('.json'), json.loads, encode_json),
    (
        lambda name, data: name.endswith(('.jsonl', '.part')),
        lambda data: [json.loads(line) for line in data.splitlines()],
        lambda tree: b''.join(encode_json(line) + b'\n' for line in tree),
    ),
    (
        lambda name, data: name.endswith('.xml') and data.startswith(b'<annotation'),
        lambda data: decode_xml(ElementTree.fromstring(data)),
        encode_xml,
    ),
    (lambda name, data: data.startswith(b'\x89PNG'), decode_png, encode_png),
    (lambda name, data: data.startswith(b'\x93NUMPY'), decode_npy, encode_npy),
    (lambda name, data: data.startswith(b'PK\x03\x04'), decode_zip, encode_zip),
    (
        lambda name, data: name.endswith(('.txt', '.en', '.de', '.codes', '.tsv', '.sgm', '.xml', '.py', '.pts')),
        decode_lines,
        encode_lines,
    ),
)
