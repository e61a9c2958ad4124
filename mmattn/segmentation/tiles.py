"""Segmentation of a large image in overlapping tiles, with memory for one row of tiles."""

from collections.abc import Callable, Iterable, Iterator

import torch
from mmseg.models.segmentors import EncoderDecoder
from mmseg.structures import SegDataSample
from torch import Tensor
from torch.nn.functional import interpolate

from mmattn.utils.images import tile_positions


@torch.no_grad()
def segment_in_tiles(
    model: EncoderDecoder,
    image: Tensor,
    sample: SegDataSample,
    size: int | tuple[int, int],
    stride: int | tuple[int, int],
    batch_size: int = 1,
) -> Iterator[Tensor]:
    """Yield the logits of successive rows of pixels, from top to bottom.

    Tiles, and the mean where they overlap, are as in mmseg's ``mode='slide'``. mmseg holds the logits of the whole
    image. Here, memory is for one row of tiles. The model's ``test_cfg`` is not read.

    Args:
        model (EncoderDecoder): the segmentor, in evaluation mode.
        image (Tensor): uint8 ``(bands, H, W)``, as the test pipeline packs it. It may be on another device.
        sample (SegDataSample): meta information of the image.
        size (int or tuple[int, int]): side, or height and width, of a tile in pixels.
        stride (int or tuple[int, int]): distance between tiles, or down and across, 1 to ``size``.
        batch_size (int): maximum number of tiles that the model receives together. Defaults to 1.

    Yields:
        Tensor: ``(channels, h, W)``, on the model's device. The heights ``h`` add up to ``H``.
    """
    yield from join_tiles(
        lambda tiles: _logits(model, tiles, sample),
        image,
        model.out_channels,
        next(model.parameters()).device,
        (size, size) if isinstance(size, int) else size,
        (stride, stride) if isinstance(stride, int) else stride,
        batch_size,
    )


def join_tiles(
    forward: Callable[[list[Tensor]], Tensor],
    image: Tensor,
    channels: int,
    device: torch.device,
    size: tuple[int, int],
    stride: tuple[int, int],
    batch_size: int = 1,
) -> Iterator[Tensor]:
    """Yield rows of pixels of the joined results of tiles, the mean where they overlap.

    Args:
        forward (callable): from tiles ``(bands, h, w)`` to a tensor ``(tiles, channels, h, w)`` on ``device``.
        image (Tensor): ``(bands, H, W)``.
        channels (int): channels of the results.
        device (torch.device): where the results are.
        size (tuple[int, int]): height and width of a tile.
        stride (tuple[int, int]): distance between tiles, down and across, 1 to ``size``.
        batch_size (int): maximum number of tiles that ``forward`` receives together. Defaults to 1.

    Yields:
        Tensor: ``(channels, h, W)``. The heights ``h`` add up to ``H``.
    """
    if not all(1 <= step <= side for step, side in zip(stride, size)):
        raise ValueError(f'the stride of tiles must be 1 to their size {tuple(size)}; got {tuple(stride)}')
    _, height, width = image.shape
    ys, xs = tile_positions(height, size[0], stride[0]), tile_positions(width, size[1], stride[1])
    overlaps = _overlaps(ys, height, size[0]).to(device)[:, None] * _overlaps(xs, width, size[1]).to(device)
    shared = torch.zeros(channels, 0, width, device=device)  # sums of rows above that tiles below have, too
    for y, end in zip(ys, [*ys[1:], height]):
        sums = torch.zeros(channels, min(size[0], height), width, device=device)
        sums[:, : shared.shape[1]] = shared
        for start in range(0, len(xs), batch_size):
            batch = xs[start : start + batch_size]
            tiles = [image[:, y : y + size[0], x : x + size[1]] for x in batch]
            for x, logits in zip(batch, forward(tiles)):
                sums[:, :, x : x + size[1]] += logits
        shared = sums[:, end - y :].clone()
        yield sums[:, : end - y].div_(overlaps[y:end])


def resize_rows(
    parts: Iterable[Tensor], size: tuple[int, int], shape: tuple[int, int], align_corners: bool, most: int
) -> Iterator[Tensor]:
    """Resize successive rows of a map as bilinear ``interpolate`` resizes the whole map, without holding it.

    Args:
        parts (iterable of Tensor): ``(channels, h, W)``, from top to bottom.
        size (tuple[int, int]): height and width of the map.
        shape (tuple[int, int]): height and width after resizing.
        align_corners (bool): as for ``interpolate``.
        most (int): maximum number of rows that are yielded together.

    Yields:
        Tensor: ``(channels, h, shape[1])``. The heights ``h`` add up to ``shape[0]``.
    """
    if size == shape:
        yield from parts
        return
    rows = torch.arange(shape[0], dtype=torch.float64)
    if align_corners:
        positions = rows * ((size[0] - 1) / max(shape[0] - 1, 1))
    else:
        positions = ((rows + 0.5) * (size[0] / shape[0]) - 0.5).clamp(min=0)
    above = positions.long()
    below = (above + 1).clamp(max=size[0] - 1)
    start = done = 0  # rows of the map before those that are held, rows that were yielded
    held = None
    for part in parts:
        part = interpolate(part[None], (part.shape[1], shape[1]), mode='bilinear', align_corners=align_corners)[0]
        held = part if held is None else torch.cat([held, part], 1)
        ready = int((below < start + held.shape[1]).sum())
        for first in range(done, ready, most):
            among = slice(first, min(first + most, ready))
            share = (positions - above)[among, None].to(held)
            upper, lower = (held[:, (index[among] - start).to(held.device)] for index in (above, below))
            yield torch.lerp(upper, lower, share)
        done = ready
        if done < shape[0]:
            unused = min(int(above[done]) - start, held.shape[1])
            held, start = held[:, unused:], start + unused


def _overlaps(positions: list[int], length: int, size: int) -> Tensor:
    counts = torch.zeros(length)
    for start in positions:
        counts[start : start + size] += 1
    return counts


def _logits(model: EncoderDecoder, tiles: list[Tensor], sample: SegDataSample) -> Tensor:
    samples = [sample.clone() for _ in tiles]
    inputs = model.data_preprocessor(dict(inputs=tiles, data_samples=samples), False)['inputs']
    metas = [dict(s.metainfo, img_shape=inputs.shape[2:]) for s in samples]  # a Size has precedence over pad_shape
    height, width = tiles[0].shape[1:]
    return model.encode_decode(inputs, metas)[:, :, :height, :width]  # without what the preprocessor pads
