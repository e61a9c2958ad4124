"""Labels that were interpolated after painting, and those that only look like it."""

import numpy as np
import pytest

from mmattn.utils.mask_edges import altered_labels


@pytest.mark.parametrize('turned', [False, True])
def test_a_line_ends_where_the_next_begins(turned):
    """Lines 3 3 3 3 0 0 0 0 1 have one edge each. Read on into the next line, 0 1 3 would be a ramp."""
    lines = np.tile(np.array([3] * 4 + [0] * 4 + [1], np.uint8), (40, 1))
    assert altered_labels(lines.T if turned else lines) == ''
    ramps = np.tile(np.array([3] * 4 + [0] * 4 + [1] + [3] * 4, np.uint8), (40, 1))
    assert '0 1 3' in altered_labels(ramps.T if turned else ramps)
