"""Pascal VOC: an XML file per image, with boxes. Difficult objects are crowds: mmdet ignores both."""

from pathlib import Path, PurePosixPath
from xml.etree.ElementTree import Element

from mmattn.utils.faults import Faults, FaultsError
from mmattn.utils.image_files import SUFFIXES

from .shapes import UNKNOWN, Picture, Shape, Size, class_name, rectangle


def read(root: Element, path: Path, faults: Faults) -> tuple[list[Picture], list[str]]:
    """Return the picture of a file. Boxes are taken as written; mmdet's ``XMLDataset`` subtracts 1 from each number."""
    width, height = (int(float(root.findtext(f'size/{side}') or 0)) for side in ('width', 'height'))
    folder, file = ((root.findtext(tag) or '').strip().replace('\\', '/') for tag in ('folder', 'filename'))
    written = PurePosixPath('/'.join(filter(None, (folder, file or path.stem))))
    suffix = written.suffix if written.suffix.lower() in SUFFIXES else ''
    # the name inside of a file that was copied or renamed is stale, and may be another image's
    names = [str(written.parent / f'{path.stem}{suffix}'), str(written)]
    objects = [{part.tag: part.text for part in (*each, *each.findall('bndbox/*'))} for each in root.iter('object')]
    entries = [(f'object {number}', each) for number, each in enumerate(objects, 1)]
    return [Picture(names, path, entries, _shape, (width, height) if width and height else UNKNOWN)], []


def _shape(entry: dict[str, str | None], size: Size) -> Shape:
    left, top, right, bottom = (float(entry[side] or '') for side in ('xmin', 'ymin', 'xmax', 'ymax'))
    if left > right or top > bottom:
        raise FaultsError(f'the box ends before it begins: {left:g}, {top:g}, {right:g}, {bottom:g}')
    crowd = (entry.get('difficult') or '').strip() == '1'
    return rectangle(class_name((entry['name'] or '').strip()), left, top, right, bottom, crowd=crowd)
