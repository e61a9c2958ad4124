"""Regions that converters write: the ids of images, the record of a store, the boxes that features are pooled of."""

from types import SimpleNamespace

import pytest
import torch

from common.region_extraction import find_images
from common.region_extractors import RegionExtractor
from common.regions import RepairOptions, write_store
from mmattn.language import Regions, RegionStore
from mmattn.utils.faults import FaultsError


@pytest.mark.parametrize(
    ('names', 'image_id', 'words'),
    [(['a/7.jpg', 'b/7.png'], 'name', 'a/7.jpg'), (['x07.jpg', 'x7.jpg'], 'last-number', 'x07.jpg')],
)
def test_two_images_of_one_id_are_both_named(tmp_path, names, image_id, words):
    paths = [tmp_path / name for name in names]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    with pytest.raises(FaultsError, match=words) as caught:
        find_images(paths, image_id)
    assert [*caught.value.by_path] == [str(paths[1])]


@pytest.mark.parametrize('clip', [False, True])
def test_a_store_of_clipped_boxes_says_so(tmp_path, clip):
    """So a run without the option does not continue one with it, and a config can require either."""
    inside = Regions(torch.ones(1, 2), torch.tensor([[0.0, 0.0, 9.0, 9.0]]), (9, 9))
    options = RepairOptions(out_dir=tmp_path / 'regions', clip_boxes=clip)
    write_store(options, 'a.py, boxes.tsv', [('row 1', 'a', lambda: inside)])
    made_by = 'a.py, boxes.tsv, --clip-boxes' if clip else 'a.py, boxes.tsv'
    store = RegionStore(tmp_path / 'regions')
    assert store.source_faults(made_by) == []
    assert bool(store.source_faults('--clip-boxes')) != clip


def test_features_are_pooled_of_the_boxes_in_the_one_image_of_a_batch():
    """By a stand-in for the RoI head of a detector, whose operators a build of mmcv may lack."""
    asked = []

    class Pooling(torch.nn.Module):
        num_inputs = 2

        def forward(self, maps, rois):
            asked.append((len(maps), rois.tolist()))
            return rois[:, 1:, None, None].expand(-1, -1, 3, 3)

    head = SimpleNamespace(bbox_roi_extractor=Pooling(), bbox_head=SimpleNamespace(), with_shared_head=False)
    boxes = torch.tensor([[0.0, 1.0, 5.0, 7.0], [2.0, 2.0, 3.0, 4.0]])
    extractor = RegionExtractor(SimpleNamespace(roi_head=head), None)
    assert torch.equal(extractor.pool([torch.zeros(1, 4, 2, 2)] * 3, boxes, (8, 8)), boxes)
    assert asked == [(2, [[0, *box] for box in boxes.tolist()])]
