"""Numbers of boxes on a picture."""

from mmattn.language.regions.box_pictures import _free_place

SIZE = (60, 40)


def test_numbers_of_equal_boxes_do_not_cover_each_other():
    placed = []
    for _ in range(6):
        placed.append(_free_place((10, 10, 40, 30), SIZE, 3.0, placed))
    for i, (x, y) in enumerate(placed):
        assert 0 <= x <= SIZE[0] - 3
        assert 0 <= y <= SIZE[1] - 3
        assert all(max(abs(x - a), abs(y - b)) > 3 for a, b in placed[:i])
