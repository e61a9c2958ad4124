"""Alignment of faces by landmarks: similarity transforms to the mean shape of the training faces.

A point of the plane is represented by a complex number x + iy. A similarity is then z → az + b, without reflections:
|a| is the scale, arg a the rotation, b the translation. Least squares over a and b has a closed form. So does the mean
shape: it is the first singular vector of the normalised shapes, to which generalised Procrustes analysis converges
(Kent 1994).
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

import cv2
import numpy as np

from mmattn.utils.faults import Faults, FaultsError


def read_landmarks(path: Path) -> tuple[str, np.ndarray]:
    """Read HELEN's own format (the image's name in the first line, then ``x , y``), iBUG's ``.pts``, or bare ``x y``.

    Returns the image's name (from the first line, else from the file's name), and points, complex of shape (P,). A file
    that is not readable or not valid is a fault.
    """
    try:
        text, count = path.read_text(encoding='utf-8-sig'), None
        if path.suffix == '.pts':
            match = re.fullmatch(r'.*n_points:\s*(\d+)\s*\{(.*)\}\s*', text, re.DOTALL)
            if not match:
                raise ValueError('n_points and braces are missing')
            count, text = int(match[1]), match[2]
        lines = [line.replace(',', ' ').split() for line in text.splitlines() if line.strip()]
        name = lines.pop(0)[0] if len(lines[0]) == 1 else path.stem
        points = np.array([complex(float(x), float(y)) for x, y in lines])
    except (OSError, ValueError, IndexError) as error:
        raise FaultsError(path, f'not landmarks: {error}') from error
    if count not in (None, len(points)):
        raise FaultsError(path, f'{len(points)} points, but its header has n_points: {count}')
    if not np.isfinite(points).all() or len(np.unique(points)) < 2:
        raise FaultsError(path, 'points are not finite, all equal, or missing')
    return name, points


def read_all_landmarks(folder: Path, names: Collection[str], faults: Faults) -> dict[str, np.ndarray]:
    """Read landmarks, name → complex array of shape (P,), from all ``.txt`` and ``.pts`` files below a folder.

    Faults, such as images without landmarks, or with another P, are added to ``faults``.
    """
    if not folder.is_dir():
        faults.add(folder, 'no such folder')
        return {}
    missing_names = set(names)
    landmarks: dict[str, np.ndarray] = {}
    paths: dict[str, Path] = {}
    broken = Faults()  # maybe other text files; faults only if landmarks are missing
    for path in sorted(path for path in folder.rglob('*') if path.suffix in ('.txt', '.pts')):
        with broken.catch(path):
            name, points = read_landmarks(path)
            if name in landmarks:
                faults.add(path, f'a second file with the landmarks of {name}')
            elif name in missing_names:
                landmarks[name], paths[name] = points, path
    if missing := [name for name in names if name not in landmarks]:
        faults.include(broken)
        faults.add(folder, *(f'no landmarks of {name}' for name in missing))
    [(usual, _)] = Counter(map(len, landmarks.values())).most_common(1) or [(0, 0)]
    for name, points in landmarks.items():
        if len(points) != usual:
            faults.add(paths[name], f'{len(points)} landmarks of {name}, but the others have {usual}')
    return landmarks


def mean_shape(shapes: np.ndarray) -> np.ndarray:
    """Compute the full Procrustes mean of complex shapes (N, P), with the orientation of the average face.

    The result is complex, of shape (P,), with mean 0 and norm 1.
    """
    shapes = shapes - shapes.mean(1, keepdims=True)
    shapes = shapes / np.linalg.norm(shapes, axis=1, keepdims=True)
    mean = np.linalg.svd(shapes, full_matrices=False)[2][0]
    turn = np.vdot(mean, shapes.mean(0))
    return mean * turn / abs(turn)


def fit_similarity(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Fit the similarity that maps ``source`` to ``target``, both complex of shape (P,), by least squares.

    The result is float64 of shape (2, 3), as in ``cv2.warpAffine``.
    """
    centred = source - source.mean()
    a = np.vdot(centred, target) / np.vdot(centred, centred)
    b = target.mean() - a * source.mean()
    return np.array([[a.real, -a.imag, b.real], [a.imag, a.real, b.imag]])


def mostly_inside(points: np.ndarray, image: np.ndarray) -> bool:
    """Check that at least half of the points, complex of shape (P,), lie in the image of shape (H, W, C)."""
    height, width = image.shape[:2]
    return np.mean((points.real > -1) & (points.real < width) & (points.imag > -1) & (points.imag < height)) >= 0.5


class Alignment:
    """Aligns faces to images of ``size``×``size`` pixels that the mean shape fills, except for a margin.

    Args:
        landmarks (mapping): name → complex array of shape (P,).
        training (collection of str): names of the faces whose shapes are averaged.
        size (int): side of the aligned images, in pixels.
        margin (float): margin on each side, as a share of the longer side of the mean shape.
    """

    def __init__(self, landmarks: Mapping[str, np.ndarray], training: Collection[str], size: int, margin: float):
        if size < 1 or margin <= -0.5:
            raise FaultsError(f'--size must be at least 1 and --margin more than -0.5; got {size} and {margin}')
        mean = mean_shape(np.stack([landmarks[name] for name in training]))
        low, high = (complex(end(mean.real), end(mean.imag)) for end in (np.min, np.max))
        side = max((high - low).real, (high - low).imag) * (1 + 2 * margin)
        self.mean = (mean - (low + high) / 2) * size / side + (size - 1) / 2 * (1 + 1j)
        self.landmarks, self.size, self.margin = landmarks, size, margin
        self.done: dict[str, dict] = {}

    def __call__(self, name: str, key: str, image: np.ndarray, soft: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Warp an image (H, W, 3) and its soft labels (H, W, C), uint8, bilinearly to ``size``×``size`` pixels.

        Pixels outside the image become 0. ``record`` stores the transform as ``key``.
        """
        matrix = fit_similarity(self.landmarks[name], self.mean)
        self.done[key] = dict(size=[image.shape[1], image.shape[0]], matrix=matrix.tolist())

        def warp(plane: np.ndarray) -> np.ndarray:
            return cv2.warpAffine(plane, matrix, (self.size, self.size), flags=cv2.INTER_LINEAR)

        # One plane at a time: OpenCV guarantees at most four channels per call.
        return warp(image), np.dstack([warp(plane) for plane in np.moveaxis(soft, -1, 0).copy()])

    def record(self) -> dict:
        """Describe all transforms. ``matrix`` maps pixels of the original image, which has ``size``, to aligned pixels.

        ``cv2.warpAffine(prediction, matrix, size, flags=cv2.INTER_NEAREST | cv2.WARP_INVERSE_MAP)`` maps a prediction
        back to the original image.
        """
        return dict(
            size=self.size,
            margin=self.margin,
            mean_shape=[[z.real, z.imag] for z in self.mean.tolist()],
            images=dict(sorted(self.done.items())),
        )
