"""Random changes of files, by their structure where they have one, and of their bytes.

``change(rng, name, data)`` returns the changed bytes of a file, and what was changed, in words. Checksums and lengths
are made to fit, so that a change comes as far as the reader of the content.
"""

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

DEEP = 100_000
NUMBERS = (0, -1, 1, 255, 256, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 10**30, -(10**30), 0.5, 1e308, 1e-320)
WORDS = ('', ' ', 'x', '\ud800', '\0', 'a\nb', '٣', '../../x', '1e999', '-0', 'nan', 'é' * 9, '9' * 5000, 'a' * 10**5)
VALUES = (None, True, False, *NUMBERS, float('nan'), float('inf'), *WORDS, [], {}, [None], [[]], {'': None})


def change(rng, name, data):
    """Change the content of a file of this name, and return it with a description."""
    if name.endswith('.gz') and data and rng.random() < 0.7:
        with_checksum, what = change(rng, name.removesuffix('.gz'), gzip.decompress(data))
        return gzip.compress(with_checksum, 1), what
    for matches, structural in KINDS:
        if matches(name, data) and rng.random() < 0.7:
            return structural(rng, name, data)
    return change_bytes(rng, data)


def shorten(value):
    text = repr(value)
    return text if len(text) <= 40 else f'{text[:20]}… ({len(text)})'


# --- bytes


def change_bytes(rng, data):
    size = len(data)
    start, end = sorted((rng.randrange(size + 1), rng.randrange(size + 1)))
    short = min(end, start + rng.choice((1, 2, 4, 8, 16, 64)))
    part = data[start:end]
    kind = rng.choice(('flip', 'set', 'truncate', 'delete', 'repeat', 'splice', 'insert', 'number', 'text', 'append'))
    if kind == 'flip':
        changed = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 8))):
            changed[rng.randrange(size)] ^= 1 << rng.randrange(8)
        return bytes(changed), 'flip bits'
    if kind == 'text':  # a number in a text
        found = [match.span() for match in re.finditer(rb'-?\d+', data[: 10**5])]
        if found:
            a, b = rng.choice(found)
            word = str(rng.choice((*NUMBERS, 'nan', 'inf', '1e999', '-', '9' * 5000))).encode()
            return data[:a] + word + data[b:], f'number {data[a:b][:20]!r} → {word[:20]!r}'
    new = {
        'set': bytes([rng.choice((0, 1, 127, 128, 255))]) * (short - start),
        'truncate': None,
        'delete': b'',
        'repeat': part[: 10**5] * rng.choice((2, 3, 50)),
        'splice': data[rng.randrange(size + 1) :][: end - start],
        'insert': rng.randbytes(rng.choice((1, 3, 50))) + data[start:end],
        'number': rng.choice(NUMBERS[:9]).__index__().__and__(2**64 - 1).to_bytes(8, rng.choice(('little', 'big'))),
        'text': b'\xff\xfe',
        'append': None,
    }[kind]
    if kind == 'truncate':
        return data[:start], f'truncate to {start} of {size}'
    if kind == 'append':
        return data + rng.choice((data, bytes(100), b'\n', b'x')), 'append'
    end = {'set': short, 'number': min(size, start + 8), 'text': start}.get(kind, end)
    return data[:start] + new + data[end:], f'{kind} {start}…{end} of {size}'


def change_line(rng, name, data):
    """Delete, repeat or exchange lines or fields of a text."""
    lines = data.split(b'\n')
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.choice(('delete', 'repeat', 'exchange', 'empty', 'field', 'word'))
    if kind == 'delete':
        del lines[i]
    elif kind == 'repeat':
        lines.insert(j, lines[i])
    elif kind == 'exchange':
        lines[i], lines[j] = lines[j], lines[i]
    elif kind == 'empty':
        lines[i] = b''
    else:
        separator = rng.choice((b' ', b'\t', b','))
        fields = lines[i].split(separator)
        place = rng.randrange(len(fields))
        if kind == 'word':
            fields[place] = str(rng.choice(WORDS)).encode('utf-8', 'surrogatepass')
        else:
            fields[place : place + 1] = rng.choice(([], [fields[place]] * 2, [b''], [fields[place]] * 10**4))
        lines[i] = separator.join(fields)
    return b'\n'.join(lines), f'{kind} line {i + 1}'


# --- trees: JSON, and what a pickle holds


def places(tree, where=()):
    """Yield the places of all nodes but the root: their containers and keys."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield tree, key, (*where, key)
        if isinstance(value, dict | list):
            yield from places(value, (*where, key))


def change_tree(rng, tree, values=VALUES):
    """Change one node of a tree of dicts and lists in place, and return a description."""
    if not tree or rng.random() < 0.02:
        return rng.choice(values), 'the root'
    container, key, where = rng.choice(list(places(tree)))
    path = '.'.join(map(str, where))
    kind = rng.choice(('value', 'value', 'value', 'delete', 'repeat', 'rename', 'move', 'similar'))
    old = container[key]
    if kind == 'delete':
        del container[key]
    elif kind == 'repeat' and isinstance(container, list):
        container.insert(rng.randrange(len(container) + 1), old)
    elif kind == 'rename' and isinstance(container, dict):
        new = rng.choice(('', 'x', '-1', f'{key}', '٣', '\ud800', f' {key}'))
        container[new] = container.pop(key)
        return tree, f'{path}: renamed {shorten(new)}'
    elif kind == 'move':
        container[key] = copy.deepcopy(rng.choice(list(places(tree)))[0])
    elif kind == 'similar' and isinstance(old, int | float):
        container[key] = rng.choice((-old, old * 1000, old + 0.5, str(old), [old], old + 1, bool(old)))
    elif kind == 'similar' and isinstance(old, str):
        container[key] = rng.choice((old.upper(), old * 1000, [old], f' {old}', old[:-1], old.encode().hex()))
    else:
        container[key] = rng.choice(values)
    new = shorten(container[key]) if kind not in ('delete', 'repeat') else kind
    return tree, f'{path}: {shorten(old)} → {new}'


def change_json(rng, name, data):
    tree, what = change_tree(rng, json.loads(data))
    if rng.random() < 0.05 and tree:  # so deep that a parser or a recursive reader may fail
        container, key, where = rng.choice(list(places(tree))) if isinstance(tree, dict | list) else (None, None, ())
        if container is not None:
            container[key], what = '<deep>', f'{where}: {DEEP:,} lists'
    text = json.dumps(tree, ensure_ascii=rng.random() < 0.5)
    if rng.random() < 0.05:  # a key twice
        text = re.sub(r'("\w+": )', r'\1null, \1', text, count=1)
    text = text.replace('"<deep>"', '[' * DEEP + ']' * DEEP)
    return text.encode('utf-8', 'surrogatepass'), what


def change_json_line(rng, name, data):
    lines = data.split(b'\n')
    i = rng.randrange(len([line for line in lines if line]))
    lines[i], what = change_json(rng, name, lines[i])
    return b'\n'.join(lines), f'line {i + 1}: {what}'


def change_xml(rng, name, data):
    root = ElementTree.fromstring(data)
    parents = [parent for parent in root.iter() if len(parent)]
    parent = rng.choice(parents)
    place = rng.randrange(len(parent))
    child = parent[place]
    old, kind = child.text, rng.choice(('text', 'text', 'text', 'delete', 'repeat', 'move', 'tag', 'deep', 'entity'))
    what = f'{parent.tag}/{child.tag}: {kind}'
    if kind == 'text':
        child.text = str(rng.choice((*NUMBERS, 'nan', 'inf', '-inf', '', 'x', ' 3 ', '٣', '1_0', 'a' * 10**5)))
        what = f'{parent.tag}/{child.tag}: {shorten(old)} → {shorten(child.text)}'
    elif kind == 'delete':
        parent.remove(child)
    elif kind == 'repeat':
        parent.insert(rng.randrange(len(parent) + 1), child)
    elif kind == 'move':
        parent.remove(child)
        rng.choice(parents).append(child)
    elif kind == 'tag':
        child.tag = rng.choice(('x', 'object', 'size', 'name'))
    text = ElementTree.tostring(root, encoding='unicode')
    if kind == 'deep':
        text = text.replace('</', '<a>' * DEEP + '</a>' * DEEP + '</', 1)
    elif kind == 'entity':
        entities = ''.join(f'<!ENTITY e{i} "{f"&e{i - 1};" * 10 if i else "aaaaaaaaaa"}">' for i in range(12))
        text = f'<!DOCTYPE r [{entities}]>' + re.sub(r'>([^<]+)<', '>&e11;<', text, count=1)
    return text.encode(), what


# --- files with checksums, lengths or headers


def change_png(rng, name, data):
    chunks, at = [], 8
    while at < len(data):
        (size,) = struct.unpack('>I', data[at : at + 4])
        chunks.append([data[at + 4 : at + 8], data[at + 8 : at + 8 + size]])
        at += size + 12
    i, kind = (
        rng.randrange(len(chunks)),
        rng.choice(('header', 'header', 'delete', 'repeat', 'content', 'name', 'pixels')),
    )
    what = f'{kind} {chunks[i][0].decode()}'
    if kind == 'header':
        fields = list(struct.unpack('>IIBBBBB', chunks[0][1]))
        field = rng.randrange(7)
        new = rng.choice(
            (0, 1, 2, 3, 4, 6, 7, 8, 16, 255) if field > 1 else (0, 1, 7, 2**14, 2**16, 2**24, 2**31 - 1, 2**32 - 1)
        )
        what = f'header {field}: {fields[field]} → {new}'
        fields[field] = new
        chunks[0][1] = struct.pack('>IIBBBBB', *fields)
    elif kind == 'delete':
        del chunks[i]
    elif kind == 'repeat':
        chunks.insert(rng.randrange(len(chunks)), chunks[i])
    elif kind == 'name':
        chunks[i][0] = rng.choice((b'PLTE', b'tRNS', b'IDAT', b'zTXt', b'eXIf', b'acTL', b'iCCP'))
    elif kind == 'pixels':
        found = next((chunk for chunk in chunks if chunk[0] == b'IDAT'), None)
        pixels, what = change_bytes(rng, zlib.decompress(found[1])) if found else (b'', what)
        if found:
            found[1] = zlib.compress(rng.choice((pixels, bytes(3 * 10**7))), 1)
    elif chunks[i][1]:
        chunks[i][1], _ = change_bytes(rng, chunks[i][1])
    packed = (struct.pack('>I', len(c)) + n + c + struct.pack('>I', zlib.crc32(n + c)) for n, c in chunks)
    return data[:8] + b''.join(packed), what


def change_npy(rng, name, data):
    array = np.load(io.BytesIO(data), allow_pickle=False)
    kind = rng.choice(('shape', 'dtype', 'values', 'value', 'rows', 'cast', 'bytes'))
    file = io.BytesIO()
    if kind in ('shape', 'dtype'):
        header = np.lib.format.header_data_from_array_1_0(array)
        shape = list(header['shape'])
        new = rng.choice((0, -1, 1, 2**31, 2**40, 2**63 - 1, 10**30, shape[0] + 1 if shape else 3))
        if kind == 'shape' and shape and rng.random() < 0.7:
            shape[rng.randrange(len(shape))] = new
        elif kind == 'shape':
            shape = rng.choice(([], [*shape, 1], [new], shape[1:], shape[::-1], [1] * 40))
        else:
            header['descr'] = rng.choice(
                (
                    '|O',
                    '<f8',
                    '>f4',
                    '<f2',
                    '|S1000000000',
                    '<U5',
                    '|V8',
                    '<M8[s]',
                    '<c16',
                    '|b1',
                    '|i1',
                    '<u8',
                    'x',
                    [('a', '<f4')],
                )
            )
        header['shape'] = tuple(shape)
        file.write(b'\x93NUMPY\x01\x00')
        text = repr(header).encode() + b'\n'
        file.write(struct.pack('<H', len(text)) + text + array.tobytes())
        return file.getvalue(), f'{kind} {header["descr"]} {header["shape"]}'
    if kind == 'bytes':
        changed, what = change_bytes(rng, data)
        return changed, what
    flat = array.flatten()
    what = kind
    if kind == 'rows' and array.ndim:
        array = rng.choice((array[:0], array[:-1], np.concatenate([array, array]), array[::-1], array[None], array.T))
    elif kind == 'cast' and array.dtype.kind not in 'SU':
        array = array.astype(rng.choice(('f2', 'f8', 'i1', 'u8', 'c8', '?', 'U9')))
        what = f'cast {array.dtype}'
    elif flat.size and array.dtype.kind in 'iuf':
        limits = np.finfo(array.dtype) if array.dtype.kind == 'f' else np.iinfo(array.dtype)
        new = rng.choice(
            (0, -1, 1, limits.max, limits.min, *([np.nan, np.inf, -np.inf] if array.dtype.kind == 'f' else []))
        )
        where = slice(None) if kind == 'values' else rng.randrange(flat.size)
        with np.errstate(all='ignore'):
            flat[where] = np.array(new).astype(array.dtype)
        array, what = flat.reshape(array.shape), f'{kind} {new}'
    np.save(file, array, allow_pickle=False)
    return file.getvalue(), what


def change_zip(rng, name, data):
    """Change an entry of an archive, whose checksum then fits, or what its directory says of it."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = [(entry.filename, archive.read(entry)) for entry in archive.infolist()]
    i, kind = (
        rng.randrange(len(entries)),
        rng.choice(('entry', 'entry', 'entry', 'delete', 'repeat', 'rename', 'claim', 'zeros')),
    )
    entry, content = entries[i]
    what = f'{kind} {entry}'
    if kind == 'entry' and content:
        content, what = change(rng, entry, content)
        entries[i], what = (entry, content), f'{entry}: {what}'
    elif kind == 'delete':
        del entries[i]
    elif kind == 'repeat':
        entries.append((entry, content[::-1]))
    elif kind == 'rename':
        entries[i] = (rng.choice((f'{entry}x', '../x', 'x', entry.upper(), f'/{entry}')), content)
    elif kind == 'zeros':
        entries[i] = (entry, bytes(2 * 10**7))
    packed = io.BytesIO()
    stored = zipfile.ZIP_DEFLATED if kind == 'zeros' else zipfile.ZIP_STORED
    with zipfile.ZipFile(packed, 'w', stored, compresslevel=1) as archive:
        for entry, content in entries:
            archive.writestr(zipfile.ZipInfo(entry), content, stored)
    data = packed.getvalue()
    if kind == 'claim':
        at = [match.start() for match in re.finditer(rb'PK\x01\x02|PK\x03\x04|PK\x05\x06', data)]
        start = rng.choice(at)
        offset = start + 4 + rng.randrange(40)
        data = data[:offset] + rng.choice((b'\xff\xff\xff\xff', b'\xff\xff\xff\x7f', bytes(4))) + data[offset + 4 :]
        what = f'claim {offset - start} of a header'
    return data, what


def change_text(rng, name, data):
    return change_bytes(rng, data)


KINDS = (
    (lambda name, data: name.endswith('.json'), change_json),
    (lambda name, data: name.endswith(('.jsonl', '.part')), change_json_line),
    (lambda name, data: name.endswith('.xml') and data.startswith(b'<annotation'), change_xml),
    (lambda name, data: data.startswith(b'\x89PNG'), change_png),
    (lambda name, data: data.startswith(b'\x93NUMPY'), change_npy),
    (lambda name, data: data.startswith(b'PK\x03\x04'), change_zip),
    (lambda name, data: name.endswith(('.txt', '.en', '.de', '.codes', '.tsv', '.sgm', '.xml', '.py')), change_line),
)


def generator(*seed):
    return random.Random(' '.join(map(str, seed)))
