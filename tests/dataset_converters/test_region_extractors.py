"""Region features from detectors: equal to what the detector's own head computes for the same boxes."""

import math

import pytest
import torch
import torch.nn.functional as F
from mmengine.config import ConfigDict
from mmengine.dataset import Compose
from mmengine.registry import MODELS, init_default_scope
from PIL import Image

from common.region_extractors import RegionExtractor, prepare_config
from common.regions import clip_boxes

from ..requirements import requires
from ..tiny_detectors import PIPELINE, detector

pytestmark = requires('mmcv operators')


def build(name, **options):
    init_default_scope('mmdet')
    torch.manual_seed(0)
    cfg = ConfigDict(detector(name))
    prepare_config(cfg, options.get('max_regions', 100))
    model = MODELS.build(cfg).eval()
    return RegionExtractor(model, Compose(PIPELINE), **options)


@pytest.fixture
def image(tmp_path):
    """An image that the pipeline resizes by 2 in width and 1.6 in height."""
    path = tmp_path / 'a.png'
    noise = torch.randint(0, 255, (40, 48, 3), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    Image.fromarray(noise.numpy()).save(path)
    return path


def detect(extractor, image):
    """The maps, the detections and the RoIs of an image, by the functions of mmdet."""
    batch = extractor.pipeline(dict(img_path=str(image), img_id=0))
    batch = dict(inputs=[batch['inputs']], data_samples=[batch['data_samples']])
    data = extractor.model.data_preprocessor(batch, False)
    with torch.no_grad():
        maps = extractor.model.extract_feat(data['inputs'])
        [sample] = extractor.model.predict(data['inputs'], data['data_samples'], rescale=True)
    return maps, sample.pred_instances


def rois_of(regions):
    return torch.cat([torch.zeros(len(regions.boxes), 1), regions.boxes * torch.tensor([2.0, 1.6, 2.0, 1.6])], 1)


@pytest.mark.parametrize('name', ['faster', 'faster 4conv', 'faster average', 'mask', 'cascade', 'c4'])
def test_two_stage_features_are_those_of_the_head(image, name):
    """Seen by a hook while the RoI head of mmdet computes its scores from the stored boxes."""
    extractor = build(name, min_regions=8, max_regions=12, score_thr=1.0)
    regions = extractor(image)
    maps, _ = detect(extractor, image)
    head = extractor.model.roi_head
    stage = (len(head.bbox_head) - 1,) if name == 'cascade' else ()
    bbox_head = head.bbox_head[-1] if name == 'cascade' else head.bbox_head
    seen = []
    if name == 'c4':
        head.shared_head.register_forward_hook(lambda module, args, output: seen.append(output.mean((2, 3))))
    else:
        bbox_head.shared_fcs[-1].register_forward_hook(lambda module, args, output: seen.append(F.relu(output)))
    with torch.no_grad():
        head._bbox_forward(*stage, maps, rois_of(regions))
    assert regions.features.shape == (8, 512 if name == 'c4' else 16)
    assert regions.features.std(0).max() > 1e-3  # the features are of the boxes
    torch.testing.assert_close(regions.features, seen[-1], rtol=0, atol=0)


def bilinear(x, y, u):
    """The value of a map (C, h, w) at a point, literally; 0 beyond one pixel outside."""
    h, w = x.shape[1:]
    if y < -1 or y > h or u < -1 or u > w:
        return x.new_zeros(len(x))
    y, u = min(max(y, 0), h - 1), min(max(u, 0), w - 1)
    top, left = min(int(y), h - 1), min(int(u), w - 1)
    bottom, right = min(top + 1, h - 1), min(left + 1, w - 1)
    a, b = y - top, u - left
    return (
        x[:, top, left] * (1 - a) * (1 - b)
        + x[:, top, right] * (1 - a) * b
        + x[:, bottom, left] * a * (1 - b)
        + x[:, bottom, right] * a * b
    )


BOXES = [[0, 0, 96, 64], [10, 20, 200, 240], [3, 4, 310.5, 300], [0, 0, 500, 512], [100, 90, 101, 480], [-9, 8, 7, 30]]
BOXES += [[5, 6, 228, 229], [5, 6, 230, 231]]  # of a side just below and above 224


def test_one_stage_features_are_means_of_bilinear_samples():
    """At the regular points of RoIAlign, ceil(side / 7) per bin and axis, of the level that FPN's equation gives."""
    rng = torch.Generator().manual_seed(2)
    maps = [torch.randn(1, 5, 512 // stride, 512 // stride, generator=rng) for stride in (8, 16, 32)]
    found = build('retina').pool(maps, torch.tensor(BOXES), (512, 512))
    levels = []
    for features, (x0, y0, x1, y1) in zip(found, BOXES):
        # FPN: level k0 + log2(√area / 224), in which k0 is that of stride 16
        level = 1 + int(torch.tensor(((x1 - x0) * (y1 - y0)) ** 0.5 / 224).log2().floor().clamp(-1, 1))
        levels.append(level)
        stride = 8 * 2**level
        points = []
        for start, stop in ((y0 / stride - 0.5, y1 / stride - 0.5), (x0 / stride - 0.5, x1 / stride - 0.5)):
            count = 7 * math.ceil((stop - start) / 7)
            points.append([start + (i + 0.5) * (stop - start) / count for i in range(count)])
        samples = [bilinear(maps[level][0].double(), y, x) for y in points[0] for x in points[1]]
        torch.testing.assert_close(features.double(), torch.stack(samples).mean(0), rtol=1e-5, atol=1e-5)
    assert levels == [0, 0, 1, 2, 0, 0, 0, 1]


def test_a_one_stage_detector_pools_from_its_neck(image):
    extractor = build('retina', min_regions=6, max_regions=6, whole_image=True)
    regions = extractor(image)
    maps, found = detect(extractor, image)
    assert regions.features.shape == (7, 16)
    assert torch.equal(regions.scores[1:], found.scores.sort(descending=True)[0][:6])
    another = build('retina')  # not with the levels that the first one has chosen
    expected = another.pool(maps, rois_of(regions)[:, 1:], (64, 96))
    torch.testing.assert_close(regions.features, expected, rtol=0, atol=0)


def test_boxes_are_the_detections_of_the_highest_scores(image):
    extractor = build('faster', min_regions=3, max_regions=20)
    _, found = detect(extractor, image)
    order = found.scores.argsort(descending=True)
    assert len(order) == 100
    threshold = float(found.scores[order[7]])
    for low, high, thr, expected in (
        (3, 20, threshold, 8),
        (10, 20, threshold, 10),
        (3, 5, threshold, 5),
        (0, 5, 1, 0),
    ):
        extractor = build('faster', min_regions=low, max_regions=high, score_thr=thr)
        regions = extractor(image)
        assert regions.size == (48, 40)
        assert len(regions.features) == len(regions.boxes) == expected
        assert torch.equal(regions.scores, found.scores[order[:expected]])
        assert torch.equal(regions.classes, found.labels[order[:expected]])
        torch.testing.assert_close(regions.boxes, found.bboxes[order[:expected]], rtol=0, atol=1.0)  # clipped
    whole = build('faster', min_regions=3, max_regions=3, score_thr=1, whole_image=True)(image)
    assert whole.boxes[0].tolist() == [0, 0, 48, 40]
    assert (int(whole.classes[0]), float(whole.scores[0])) == (-1, 0)
    assert torch.equal(whole.scores[1:], found.scores[order[:3]])


def test_failures():
    with pytest.raises(ValueError, match='max_regions'):
        RegionExtractor(torch.nn.Identity(), dict, min_regions=5, max_regions=4)
    maps = [torch.zeros(1, 8, 4, 4), torch.zeros(1, 16, 2, 2)]
    with pytest.raises(ValueError, match=r'\[8, 16\]'):
        RegionExtractor(torch.nn.Identity(), dict).pool(maps, torch.zeros(1, 4), (32, 32))


def test_clipped_boxes():
    boxes = torch.tensor([[-3, -4, 7, 8], [49.5, 10, 52, 20], [60, 50, 70, 60], [5, 6, 5, 6], [1, 2, 3, 4]]).float()
    expected = [[0, 0, 7, 8], [49, 10, 50, 20], [49, 39, 50, 40], [5, 6, 6, 7], [1, 2, 3, 4]]
    assert clip_boxes(boxes, (50, 40)).tolist() == expected
