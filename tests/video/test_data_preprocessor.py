"""The pixels that a backbone gets of a clip: channels, statistics, padding."""

import pytest
import torch

from mmattn.video import ClipDataPreprocessor


@pytest.mark.parametrize(
    ('options', 'mean', 'std', 'is_turned', 'size'),
    [
        ({}, (123.675, 116.28, 103.53), (58.395, 57.12, 57.375), True, (8, 16)),  # of ImageNet, RGB
        (
            dict(mean=(1, 2, 3), std=(4, 5, 6), bgr_to_rgb=False, pad_size_divisor=5),
            (1, 2, 3),
            (4, 5, 6),
            False,
            (5, 10),
        ),
    ],
)
def test_frames_are_normalised_by_channel_and_padded_with_zeros(options, mean, std, is_turned, size):
    clips = torch.randint(0, 256, (2, 3, 3, 5, 9), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    found = ClipDataPreprocessor(**options)(dict(inputs=[*clips], data_samples=[1, 2]))
    shown = clips.flip(2) if is_turned else clips
    expected = (shown.float() - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    assert found['data_samples'] == [1, 2]
    assert found['inputs'].shape == (2, 3, 3, *size)
    torch.testing.assert_close(found['inputs'][..., :5, :9], expected)
    assert not found['inputs'][..., 5:, :].any()
    assert not found['inputs'][..., 9:].any()


def test_a_batch_has_one_shape_or_no_frames():
    preprocess = ClipDataPreprocessor()
    assert preprocess(dict(data_samples=[1])) == dict(inputs=None, data_samples=[1])
    clips = [torch.zeros(2, 3, 4, width, dtype=torch.uint8) for width in (5, 6)]
    with pytest.raises(ValueError, match=r'\(2, 3, 4, 5\), \(2, 3, 4, 6\)'):
        preprocess(dict(inputs=clips))
