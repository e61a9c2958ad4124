"""The alignment of faces agrees with Umeyama's transform and generalised Procrustes analysis; points are complex."""

import numpy as np

from common.face_alignment import fit_similarity, mean_shape


def similarity(rng):
    """A random scale and turn, as one complex number, and shift."""
    return complex(rng.uniform(0.7, 1.6) * np.exp(1j * rng.uniform(-0.6, 0.6))), complex(*rng.uniform(-5, 5, 2))


def random_shapes(rng, count=7, points=9):
    mean = rng.normal(size=points) + 1j * rng.normal(size=points)
    noise = rng.normal(size=(count, points)) + 1j * rng.normal(size=(count, points))
    return mean + 0.05 * noise


def umeyama(source, target):
    """Umeyama (1991) as it is printed, by SVD: the (2, 3) matrix."""
    x, y = (np.stack([z.real, z.imag]) for z in (source, target))
    centred_x, centred_y = (z - z.mean(1, keepdims=True) for z in (x, y))
    u, d, vt = np.linalg.svd(centred_y @ centred_x.T / x.shape[1])
    s = np.diag([1, np.sign(np.linalg.det(u) * np.linalg.det(vt))])
    rotation = u @ s @ vt
    scale = np.trace(np.diag(d) @ s) / centred_x.var(1).sum()
    return np.column_stack([scale * rotation, y.mean(1) - scale * rotation @ x.mean(1)])


def apply(matrix, points):
    moved = matrix @ np.stack([points.real, points.imag, np.ones(len(points))])
    return moved[0] + 1j * moved[1]


def test_the_similarity_is_umeyamas():
    rng = np.random.default_rng(0)
    for _ in range(20):
        source, target = random_shapes(rng, 2)
        target = target * 30 * np.exp(1j * rng.uniform(-3, 3)) + 4
        matrix = fit_similarity(source, target)
        np.testing.assert_allclose(matrix, umeyama(source, target), atol=1e-9)


def test_nothing_is_mirrored():
    [shape] = random_shapes(np.random.default_rng(2), 1)
    mirrored = -shape.conjugate() + 3
    matrix = fit_similarity(shape, mirrored)
    assert np.linalg.det(matrix[:, :2]) > 0
    np.testing.assert_allclose(matrix, umeyama(shape, mirrored), atol=1e-9)


def test_the_mean_shape_is_that_of_generalised_procrustes_analysis():
    """Done as the textbook does: fit all to the mean, average, until nothing moves."""
    rng = np.random.default_rng(3)
    shapes = np.stack([a * shape + b for shape in random_shapes(rng) for a, b in [similarity(rng)]])
    normalised = shapes - shapes.mean(1, keepdims=True)
    normalised /= np.linalg.norm(normalised, axis=1, keepdims=True)
    mean = normalised[0]
    for _ in range(200):
        mean = np.mean([apply(umeyama(shape, mean), shape) for shape in normalised], axis=0)
        mean = (mean - mean.mean()) / np.linalg.norm(mean)
    found = mean_shape(shapes)
    assert abs(found.mean()) < 1e-12
    assert abs(np.linalg.norm(found) - 1) < 1e-12
    np.testing.assert_allclose(apply(umeyama(mean, found), mean), found, atol=1e-8)
    assert abs(np.angle(np.vdot(found, normalised.mean(0)))) < 1e-12, 'upright'

    moved = np.stack([np.exp(0.3j) * a * shape + b for shape in shapes for a, b in [(rng.uniform(1, 9), 7 - 2j)]])
    np.testing.assert_allclose(mean_shape(moved), np.exp(0.3j) * found, atol=1e-9)
