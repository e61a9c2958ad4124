"""Pascal VOC: an XML file per image, with boxes."""

from pathlib import Path, PurePosixPath
from xml.etree.ElementTree import Element

from mmattn.utils.image_files import SUFFIXES

from .shapes import Picture, Shape


def pictures(root: Element, source: str) -> list[Picture]:
    """Read one file. Difficult objects are crowds: mmdet ignores both.

    Boxes are taken as they are written; mmdet's ``XMLDataset`` subtracts 1 from each number.
    """
    width, height = (int(float(root.findtext(f'size/{side}') or 0)) for side in ('width', 'height'))
    shapes = []
    for element in root.iter('object'):
        left, top, right, bottom = (
            float(element.findtext(f'bndbox/{side}', '')) for side in ('xmin', 'ymin', 'xmax', 'ymax')
        )
        if not (left <= right and top <= bottom):
            raise ValueError(
                f'a box of {element.findtext("name")} ends before it begins: {left:g}, {top:g}, {right:g}, {bottom:g}'
            )
        crowd = (element.findtext('difficult') or '').strip() == '1'
        shapes.append(Shape(element.findtext('name', '').strip(), box=(left, top, right, bottom), crowd=crowd))
    stem = Path(source).stem
    folder, file = ((root.findtext(tag) or '').strip().replace('\\', '/') for tag in ('folder', 'filename'))
    written = PurePosixPath('/'.join(filter(None, (folder, file or stem))))
    suffix = written.suffix if written.suffix.lower() in SUFFIXES else ''
    # the name inside of a file that was copied or renamed is stale, and may be another image's
    name = str(written.parent / f'{stem}{suffix}')
    size = (width, height) if width and height else None
    return [Picture(name, shapes, source, size, other_name=str(written))]
