"""Labels that were scaled, blurred, compressed or dithered after painting, found by the shape of their borders."""

import numpy as np

LONGEST = 3  # pixels of an edge between two areas
RAMPS = 0.2  # share of edges; at most 0.13 in clean masks of four data sets, at least 0.26 after interpolation or JPEG
SPECKS = 0.1  # share of border pixels; at most 0.04 in clean masks, at least 0.2 after dithering to black and white
FEW = 30  # edges or border pixels


def altered_labels(labels: np.ndarray) -> str:
    """Say why labels were probably scaled, blurred, compressed or dithered after painting, or return ''.

    Interpolation puts the labels 1, 2, … between areas of 0 and 3, along their whole border, where a painted mask goes
    from 0 to 3 at once. Dithering leaves pixels whose four neighbours have another label
    (those of a diagonal line do not count).

    Args:
        labels (np.ndarray): ``(H, W)`` of any integer type.

    Example:
        >>> labels = np.repeat(np.repeat([[0, 5, 5, 0], [5, 0, 0, 5]] * 2, 8, 0), 8, 1).astype(np.uint8)
        >>> altered_labels(labels)
        ''
        >>> import cv2
        >>> altered_labels(cv2.blur(labels, (2, 2)))
        '100 % of 148 edges between labels that differ by 2 or more pass through the labels between them, such as 0 3 5'
    """
    direct, ramps, examples = 0, 0, []
    for lines in (labels, labels.T):
        values, lengths, ends = _runs(np.ascontiguousarray(lines))
        rises = np.sign(np.diff(values.astype(np.int64)))
        rises[ends[:-1]] = 0  # from one line to the next
        is_area = lengths > 1
        for between in range(LONGEST + 1):
            count = len(values) - between - 1
            if count < 1:
                break
            steps = np.stack([rises[i : i + count] for i in range(between + 1)])
            width = sum((lengths[i : i + count] for i in range(1, between + 1)), np.zeros(count, np.int64))
            is_edge = (steps == steps[0]).all(0) & (steps[0] != 0) & (width <= LONGEST)
            is_edge &= is_area[:count] & is_area[between + 1 :]
            is_edge &= abs(values[between + 1 :].astype(np.int64) - values[:count]) > 1
            found = np.flatnonzero(is_edge)
            if not between:
                direct += len(found)
            elif len(found):
                ramps += len(found)
                examples.append(values[found[0] : found[0] + between + 2])
    edges = direct + ramps
    if edges >= FEW and ramps > RAMPS * edges:
        return (
            f'{ramps / edges:.0%} of {edges:,} edges between labels that differ by 2 or more pass through the labels '
            f'between them, such as {" ".join(map(str, examples[0].tolist()))}'
        ).replace('%', ' %')
    centre, *around = (
        labels[1 + dy : labels.shape[0] - 1 + dy, 1 + dx : labels.shape[1] - 1 + dx]
        for dy, dx in ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (-1, -1), (1, 1), (-1, 1), (1, -1))
    )
    sides, (before, after, above, below) = around[:4], (corner == centre for corner in around[4:])
    border = sum((side != centre).astype(np.uint8) for side in sides)
    pixels = np.count_nonzero(border)
    is_alone = (border == len(sides)) & np.logical_and.reduce([side == sides[0] for side in sides])
    is_line = (before & after) ^ (above & below)  # a diagonal line, one pixel wide; both in a checkerboard
    specks = np.count_nonzero(is_alone & ~is_line)
    if pixels >= FEW and specks > SPECKS * pixels:
        return f'{specks:,} of {pixels:,} pixels at borders are specks of one pixel'
    return ''


def _runs(lines: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return value and length of the runs of equal labels, line after line, and whether a run is the last of a line."""
    flat, width = lines.ravel(), lines.shape[1]
    is_last = np.ones(flat.size, bool)
    np.not_equal(flat[1:], flat[:-1], out=is_last[:-1])
    is_last[width - 1 :: width] = True
    stops = np.flatnonzero(is_last)
    return flat[stops], np.diff(stops, prepend=-1), stops % width == width - 1
