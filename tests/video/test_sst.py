"""The model: Expand-Mask-Project, appearance, aggregation by hand; what must hold of whole clips and their parts."""

import itertools

import numpy as np
import pytest
import torch
from mmengine.dataset import pseudo_collate
from torch import nn
from torch.nn import functional as F

from mmattn.registry import MODELS
from mmattn.video import clip_readers
from mmattn.video.aggregation import aggregate
from mmattn.video.clip_readers import ClipFrames
from mmattn.video.datasets import VideoFolderDataset, YouTubeVOSDataset
from mmattn.video.expand_mask_project import AppearanceModel, ExpandMaskProject, shrink_masks
from mmattn.video.loading import LoadClipFrames, LoadClipMasks, LoadGivenMasks, PackClip, SampleClip
from mmattn.video.masks import write_mask
from mmattn.video.session import ClipSession, Frame
from mmattn.video.transforms import ClipRandomCrop, ClipResize

from . import clips
from .clips import TEST, packed, squares, tensor_bytes
from .test_label_propagation import build as propagation

IMAGE = np.zeros((*clips.SIZE, 3), np.uint8)
BACKBONE = dict(
    type='mmseg.ResNet',
    depth=18,
    base_channels=8,  # not 4: oneDNN#6035, see test_video_tools
    num_stages=3,
    out_indices=(0, 2),
    strides=(1, 2, 1),
    dilations=(1, 1, 2),
    norm_cfg=dict(type='BN'),
    zero_init_residual=False,
)
GRID = dict(type='mmattn.GridAttention3d', num_heads=2)
STRIDED = dict(type='mmattn.StridedAttention3d', num_heads=2)
SWITCHES = [
    dict(),
    dict(attention=STRIDED),
    dict(query='object'),
    dict(appearance=True),
    dict(refine_channels=8),
    dict(appearance=True, refine_channels=8, attention=STRIDED, query='object'),
    dict(attention=dict(GRID, temporal_position='relative')),
    dict(attention=dict(GRID, temporal_position='absolute')),
    dict(attention=dict(GRID, spatial_position='none', temporal_position='none')),
    dict(attention=dict(STRIDED, local_pattern='centred', step=(2, 2, 3))),
    dict(attention=dict(STRIDED, local_pattern='forward', temporal_position='none')),
]


def build(**options):
    """A small model whose parameters and norms are random, in eval mode."""
    torch.manual_seed(0)
    model = MODELS.build(
        dict(
            type='mmattn.SST',
            backbone=BACKBONE,
            in_channels=32,
            embed_dims=16,
            norm_cfg=dict(type='GN', num_groups=4),
            **{'attention': GRID, 'encoder_layers': 1, 'decoder_layers': 2, **options},
        )
    )
    model.init_weights()
    for name, parameter in model.named_parameters():
        if not name.startswith('backbone'):
            nn.init.normal_(parameter, std=0.3)
    for norm in model.backbone.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_(std=0.2)
            norm.running_var.uniform_(0.5, 2)
    return model.eval()


def predict(model, sample):
    (predicted,) = model.test_step(pseudo_collate([dict(data_samples=sample)]))
    return predicted.pred_masks.data.numpy()


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    """A clip of 9 frames: objects 5 and 9 from the first, 7 and 2 from the fourth on."""
    path = tmp_path_factory.mktemp('clip')
    clips.clip(path, 'a', [squares(p, *((5, 9) if p < 3 else (2, 5, 7, 9))) for p in range(9)], masked=(0, 3))
    return path


@pytest.fixture
def sample(root):
    return packed(root)


def in_training(root, count=2, *transforms):
    """The clip with this number of frames, as it is trained on."""
    pipeline = [SampleClip(count), LoadClipFrames(), LoadClipMasks(), *transforms, PackClip()]
    return VideoFolderDataset(data_root=str(root), pipeline=pipeline)[0]


# Expand-Mask-Project, appearance, aggregation


@torch.no_grad()
def test_defaults_that_are_no_literals_are_those_that_are_documented(root):
    common, found = dict(type='mmattn.SST', backbone=BACKBONE, in_channels=32, refine_channels=8), []
    attention, norm = dict(type='mmattn.GridAttention3d', num_heads=8), dict(type='GN', num_groups=32)
    documented = dict(feedforward_channels=4 * 128, attention=attention, norm_cfg=norm)
    default, expected = (MODELS.build(common | options).eval() for options in ({}, documented))
    default.load_state_dict(expected.state_dict())
    for model in (default, expected):
        found += model(**model.data_preprocessor(pseudo_collate([in_training(root)])))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_expand_mask_project():
    torch.manual_seed(0)
    layer = ExpandMaskProject(6).double()
    x, masks = torch.randn(2, 3, 4, 6).double(), torch.rand(2, 3, 4).double()
    expected = torch.empty(2, 3, 4, 6).double()
    for o, i, j in itertools.product(range(2), range(3), range(4)):
        expected[o, i, j] = (
            layer.foreground.weight @ (masks[o, i, j] * x[o, i, j])
            + layer.foreground.bias
            + layer.background.weight @ ((1 - masks[o, i, j]) * x[o, i, j])
            + layer.background.bias
        )
    torch.testing.assert_close(layer(x, masks), expected)
    assert not torch.allclose(layer(x, masks), layer(x, 1 - masks))
    assert sum(p.numel() for p in ExpandMaskProject(128).parameters()) == 33024
    fresh = ExpandMaskProject(6)  # the identity, plus and minus the same random matrix
    torch.testing.assert_close(fresh.foreground.weight + fresh.background.weight, 2 * torch.eye(6))
    assert not torch.allclose(fresh.foreground.weight, fresh.background.weight)


@torch.no_grad()
def test_binary_masks():
    """M and α in {0, 1}: a cell is the object's if it has half of it or more."""
    torch.manual_seed(0)
    reference, shares = torch.randn(2, 3, 4, 16), torch.rand(2, 3, 4)
    shares[1, 2, 3] = 0.5
    clip = reference[None], torch.zeros(1, 2).long(), reference, shares, torch.zeros(2).long()
    model = build(binary_masks=True, decoder_layers=0)
    project, streams = model.expand_mask_project, model.object_streams(*clip)
    for o, i, j in itertools.product(range(2), range(3), range(4)):
        inside = shares[o, i, j] >= 0.5
        part = (project.foreground if inside else project.background).weight @ reference[o, i, j]
        expected = model.decoder_norm(part + project.foreground.bias + project.background.bias)
        torch.testing.assert_close(streams[o, 1, i, j], expected)
    model, with_shares = (build(binary_masks=binary, appearance=True) for binary in (True, False))
    rounded = (*clip[:3], (shares >= 0.5).float(), clip[-1])
    torch.testing.assert_close(model.object_streams(*clip), with_shares.object_streams(*rounded))
    assert (model.object_streams(*clip) - with_shares.object_streams(*clip)).abs().max() > 0.1


def test_masks_are_averaged_over_cells_and_never_vanish():
    masks = torch.zeros(3, 16, 24)
    masks[0, :8, :4] = 1  # half a cell
    masks[1, 9, 17] = 1  # one pixel of a cell
    shares = shrink_masks(masks, (2, 3))
    expected = torch.zeros(3, 2, 3)
    expected[0, 0, 0] = 0.5
    expected[1, 1, 2] = 1
    torch.testing.assert_close(shares, expected)
    large = torch.zeros(1, 16, 24)
    large[0, 4:, :10] = 1
    torch.testing.assert_close(shrink_masks(large, (2, 3))[0], torch.tensor([[0.5, 0.125, 0], [1, 0.25, 0]]))


def test_appearance_is_the_gaussian_of_eq_5_8():
    torch.manual_seed(0)
    layer = AppearanceModel(3)
    nn.init.normal_(layer.r)
    features, reference = torch.randn(3, 2, 4, 5, 3), torch.randn(3, 4, 5, 3)
    masks = torch.zeros(3, 4, 5)
    masks[0, 1:3, 2:] = 1
    masks[1, 0, 0] = 1  # one voxel: the variance is r alone
    found = layer(features, reference, masks)
    for o, alpha in enumerate((masks[0] > 0, masks[1] > 0, torch.ones(4, 5, dtype=bool))):
        x = reference[o][alpha]
        variance = ((x - x.mean(0)) ** 2).mean(0) + F.softplus(layer.r)
        gaussian = torch.distributions.Normal(x.mean(0), variance.sqrt())
        torch.testing.assert_close(found[o, ..., 0], gaussian.log_prob(features[o]).mean(-1))
    assert torch.isfinite(found).all()


@pytest.mark.parametrize(
    ('how', 'expected'),
    [('soft', (0.002732, 0.996738, 0.000530)), ('min', (0.05, 0.95, 0.01)), ('max', (0.99, 0.95, 0.01))],
)
def test_aggregation_of_a_clear_pixel(how, expected):
    maps = aggregate(torch.tensor([0.95, 0.01]).view(2, 1, 1).expand(2, 3, 4), how)
    found = maps[:, 2, 3]
    torch.testing.assert_close(maps, torch.tensor(expected).view(3, 1, 1).expand(3, 3, 4), atol=5e-7, rtol=0)
    assert found.argmax() == (0 if how == 'max' else 1)  # the literal rule loses it


def test_soft_aggregation_sums_to_one_whatever_the_probabilities():
    p = torch.rand(4, 6, 7)
    p[:, 0, 0], p[:, 0, 1], p[0, 1, 1] = 1, 0, 1
    found = aggregate(p)
    torch.testing.assert_close(found.sum(0), torch.ones(6, 7))
    assert torch.isfinite(found).all()
    assert found[:, 0, 1].argmax() == 0
    odds = p[0] ** 2 / (p[0] ** 2 + (1 - p[0]) ** 2)  # those of the object over those of its background
    torch.testing.assert_close(aggregate(p[:1])[1], odds, atol=1e-5, rtol=1e-5)
    assert aggregate(p[:0]).shape == (1, 6, 7)
    for dtype in (torch.float16, torch.bfloat16):
        rounded = aggregate(p.to(dtype))
        assert rounded.dtype == dtype
        torch.testing.assert_close(rounded, aggregate(p.to(dtype).float()).to(dtype))


# Whole clips and their parts


@pytest.mark.one_case
@pytest.mark.parametrize('options', SWITCHES, ids=lambda o: '-'.join(map(str, o)) or 'default')
def test_training_and_prediction_agree(options, root):
    """Frame by frame, the logits of a training clip's frames and what a session makes of the same clip."""
    model, item = build(**options), in_training(root)
    data = model.data_preprocessor(pseudo_collate([item]))
    with torch.no_grad():
        (logits,) = model(**data)  # (2, 2, 2, H, W), objects 5 and 9, frames 0 and 3
        model.score.bias[0] += (logits[:, 1] - logits[:, 0]).median()  # half of the pixels are foreground
        (logits,) = model(**data)
    assert logits.shape == (2, 2, 2, 32, 48)
    images = item['inputs'].permute(0, 2, 3, 1).numpy()
    frames = [Frame(0, images[0], item['data_samples'].given[0].numpy()), Frame(3, images[1])]
    (_, first), (_, second) = ClipSession(model).segment(frames)
    np.testing.assert_array_equal(first, squares(0, 5, 9))
    foreground = logits[:, :, 1, :30, :44].softmax(1)[:, 1]
    odds = aggregate(foreground, model.aggregation)
    expected = np.array([0, 5, 9])[odds.argmax(0).numpy()]
    best = odds.topk(2, 0).values
    differs = second != expected
    assert (best[0] - best[1]).numpy()[differs].max(initial=0) < 1e-5  # equal odds but for rounding
    assert differs.mean() < 0.01
    assert len(np.unique(expected)) > 1


@torch.no_grad()
def test_queries_are_of_the_video_unless_they_are_of_the_object(root):
    logits = {}
    for name, options in (('default', {}), ('video', dict(query='video')), ('object', dict(query='object'))):
        model = build(**options)
        (logits[name],) = model(**model.data_preprocessor(pseudo_collate([in_training(root)])))
        assert [layer.query for layer in model.decoder] == ['x' if name == 'object' else 'memory'] * 2
    assert torch.equal(logits['default'], logits['video'])
    assert not torch.allclose(logits['object'], logits['video'])


@pytest.mark.one_case
@pytest.mark.parametrize('options', SWITCHES, ids=lambda o: '-'.join(map(str, o)) or 'default')
def test_every_parameter_learns(options, root):
    model = build(**options).train()
    data = model.data_preprocessor(pseudo_collate([in_training(root), in_training(root)]), True)
    model(**data, mode='loss')['loss_mask'].backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    # softmax does not feel what is the same for all keys
    assert [name for name in silent if not name.endswith('key_proj.bias')] == []


@torch.no_grad()
def test_a_clip_in_a_batch_is_as_alone(root):
    """With all options that are not the default. The second clip is a mirror image with one object."""
    model = build(appearance=True, refine_channels=8, query='object', decoder_layers=1)
    one, two = (in_training(root) for _ in range(2))
    two['inputs'] = two['inputs'].flip(-1)
    two['data_samples'].given[0] = two['data_samples'].given[0].flip(-1)
    two['data_samples'].set_metainfo(dict(first_frames={9: 0}))
    together = model(**model.data_preprocessor(pseudo_collate([one, two])))
    assert [len(logits) for logits in together] == [2, 1]
    for item, logits in zip((one, two), together):
        (alone,) = model(**model.data_preprocessor(pseudo_collate([item])))
        torch.testing.assert_close(logits, alone, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_the_refinement_joins_the_stream_and_the_fine_map():
    """At the size of the fine map, by a convolution with group norm and ReLU, before the scores."""
    model = build(refine_channels=8)
    frames = torch.randn(2, 3, 32, 48)
    first, last = model.backbone(frames)
    features, fine = model.extract_feat(frames)
    torch.testing.assert_close(features, model.projection(last).permute(0, 2, 3, 1))
    torch.testing.assert_close(fine, first)
    stream, (layer, norm) = torch.randn(2, 4, 6, 16), (model.refinement.conv, model.refinement.gn)
    x = F.interpolate(stream.permute(0, 3, 1, 2), first.shape[2:], mode='bilinear', align_corners=False)
    x = F.conv2d(torch.cat([x, first], 1), layer.weight, padding=1)
    x = F.group_norm(x, 4, norm.weight, norm.bias).clamp(min=0)
    x = F.conv2d(x, model.score.weight, model.score.bias)
    expected = F.interpolate(x, (32, 48), mode='bilinear', align_corners=False)
    torch.testing.assert_close(model.head(stream, fine, (32, 48)), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match=r'mode .*train'):
        model(None, [], mode='train')
    with pytest.raises(ValueError, match=r'\(1, 3, 8, 8\), \(1, 3, 8, 9\)'):
        model.data_preprocessor(dict(inputs=[torch.zeros(1, 3, 8, side, dtype=torch.uint8) for side in (8, 9)]))


def test_the_losses_are_the_means_over_objects(root):
    model = build(dice_weight=2)
    model.score.bias.data[1] += 0.5  # so that parts of the objects are found
    one, two = (in_training(root, 2, ClipRandomCrop((40, 52))) for _ in range(2))
    assert (one['data_samples'].gt_masks.data == 255).any()  # what was added around the frame
    data = model.data_preprocessor(pseudo_collate([one, two]))
    assert data['inputs'].shape == (2, 2, 3, 40, 56)
    losses = model(**data, mode='loss')
    expected, dices, ious = [], [], []
    for logits, sample in zip(model(**data), data['data_samples']):
        truth = sample.gt_masks.data[1]  # the first frame is given
        for o, i in enumerate((5, 9)):
            foreground = logits[o, :, 1, :40, :52].softmax(0)[1][truth != 255]
            there = (truth == i)[truth != 255]
            expected.append(-torch.where(there, foreground, 1 - foreground).log().mean())
            dices.append(1 - (2 * foreground[there].sum() + 1) / (foreground.sum() + there.sum() + 1))
            found = foreground > 0.5
            ious.append(100 * (found & there).sum() / max(1, (found | there).sum()))
    assert len({*map(float, ious)} - {0}) == 2
    assert len({*map(float, ious)} - {0}) == 2
    for name, values, weight in (('loss_mask', expected, 1), ('loss_dice', dices, 2), ('acc_iou', ious, 1)):
        torch.testing.assert_close(losses[name], weight * torch.stack(values).mean())
    model.dice_weight = build().dice_weight
    assert 'loss_dice' not in model(**data, mode='loss')
    only = model(**model.data_preprocessor(pseudo_collate([in_training(root, 1)])), mode='loss')
    assert float(only['loss_mask']) > 0  # of its reference


@pytest.mark.one_case
@pytest.mark.parametrize('options', SWITCHES[:6], ids=lambda o: '-'.join(map(str, o)) or 'default')
def test_a_part_that_covers_the_clip_is_the_whole_clip(options, sample):
    model = build(**options)
    whole = predict(model, sample)
    model.test_cfg = dict(max_frames=9)
    np.testing.assert_array_equal(predict(model, sample), whole)
    model.test_cfg = dict(max_frames=9, sampling='sparse')
    np.testing.assert_array_equal(predict(model, sample), whole)
    assert set(np.unique(whole)) <= {0, 2, 5, 7, 9}
    assert not np.isin(whole[:3], (2, 7)).any()  # never before it is given
    np.testing.assert_array_equal(whole[0], squares(0, 5, 9))
    for i in (2, 7):
        np.testing.assert_array_equal(whole[3] == i, squares(3, 2, 5, 7, 9) == i)
    assert len(np.unique(whole[4:])) > 2


@pytest.mark.parametrize(
    ('sampling', 'max_frames', 'parts'),
    [
        ('dense', 4, [[0, 1, 2, 3], [0, 4, 5, 6], [0, 1, 2, 3], [0, 7, 8], [0, 4, 5]]),
        ('sparse', 4, [[0, 3, 6], [0, 3], [0, 1, 4, 7], [0, 1, 4], [0, 2, 5, 8], [0, 2, 5]]),
        ('sparse', 7, [[0, 2, 4, 6, 8], [0, 1, 3, 5], [0, 1, 3, 5, 7], [0, 2, 4]]),
    ],
)
def test_parts_are_seen_with_a_reference(sampling, max_frames, parts, sample, monkeypatch):
    """Objects begin at frames 0 and 3: the model sees their reference, which is its frame 0, and later frames."""
    model = build()
    seen = []
    streams = model.object_streams

    def watched(features, frame_numbers, *rest):
        seen.append((frame_numbers[0].tolist(), len(rest[-1])))
        return streams(features, frame_numbers, *rest)

    monkeypatch.setattr(model, 'object_streams', watched)
    model.test_cfg = dict(max_frames=max_frames, sampling=sampling)
    predict(model, sample)
    assert seen == [(numbers, 2) for numbers in parts]  # each frame once per reference, of two objects each


def test_order_and_names_of_objects_do_not_matter(sample):
    model = build()
    names = {2: 60, 5: 1, 7: 3, 9: 250}
    whole = predict(model, sample)
    expected = np.zeros_like(whole)
    for old, new in names.items():
        expected[whole == old] = new
    sample.given = {
        position: torch.from_numpy(np.array([names.get(i, i) for i in range(256)], np.uint8)[mask.numpy()])
        for position, mask in sample.given.items()
    }
    found = predict(model, sample)
    assert (found == expected).mean() > 0.999  # at equal probabilities the lower id wins
    np.testing.assert_array_equal(found[0], expected[0])


def test_objects_do_not_see_one_another(root):
    """The logits of an object are those it has alone; only who gets a pixel depends on the others."""
    model, item = build(), in_training(root)
    given = item['data_samples'].given[0]

    def logits():
        return model(**model.data_preprocessor(pseudo_collate([item])))[0]

    both = logits()
    for object_id, expected in zip((5, 9), both):
        item['data_samples'].given = {0: torch.where(given == object_id, given, 0)}
        item['data_samples'].set_metainfo({'first_frames': {object_id: 0}})
        torch.testing.assert_close(logits(), expected[None])
    assert (both[0] - both[1]).abs().max() > 0.1


def test_numbers_of_frames_count(tmp_path):
    """Every fifth frame of YouTube-VOS; the sinusoids see the numbers, not the positions."""
    clips.youtube_vos(tmp_path, dict(a={1: ('cat', 0)}), dict(a=4))
    sample = YouTubeVOSDataset(data_root=str(tmp_path), pipeline=TEST)[0]['data_samples']
    assert sample.frame_numbers == [0, 5, 10, 15]
    for attention, matters in ((GRID, True), (dict(GRID, temporal_position='relative'), False)):
        model = build(attention=attention)
        session = ClipSession(model)
        frames = [Frame(n, np.full((30, 44, 3), 40 * n, np.uint8)) for n in range(4)]
        session.add(frames[0]._replace(mask=squares(0, 1)))
        features, _, _ = session._features(frames[1:])
        with torch.no_grad():
            streams = [
                session._follow(session._references[0], [1], numbers, features) for numbers in ([5, 10, 15], [1, 2, 3])
            ]
        assert torch.allclose(*streams) is not matters


@pytest.mark.parametrize('scale', [(60, 40), (33, 24)])
def test_a_scale_resizes_frames_and_gives_masks_of_the_files_size(scale, root, sample):
    model = build(test_cfg=dict(scale=list(scale)))  # as `--cfg-options` gives it
    found = predict(model, sample)
    assert found.shape == (9, *clips.SIZE)
    resize = ClipResize(scale)
    change, _ = resize.draw(dict(frames=[np.zeros((*clips.SIZE, 3), np.uint8)]))
    image = np.random.default_rng(0).integers(0, 255, (*clips.SIZE, 3), dtype=np.uint8)
    np.testing.assert_array_equal(ClipSession(model, scale=scale).resize(image), change(image))
    np.testing.assert_array_equal(found[0], squares(0, 5, 9))


def test_frames_before_any_object_are_background():
    frames = [Frame(0, IMAGE), Frame(1, IMAGE), Frame(2, IMAGE, squares(2, 1))]
    found = [ids for _, ids in ClipSession(build(), max_frames=2).segment(frames)]
    assert not np.any(found[:2])
    np.testing.assert_array_equal(found[2], squares(2, 1))


@pytest.mark.slow
@pytest.mark.parametrize('sampling', ['dense', 'sparse'])
def test_no_more_frames_of_a_long_clip_are_held(tmp_path, monkeypatch, held_frames, sampling):
    """Those of a part, and those read ahead. Late parts have as many bytes of tensors as early ones."""
    clips.clip(tmp_path, 'a', [squares(0, 1, size=(16, 24))])
    (item,) = VideoFolderDataset(data_root=str(tmp_path))
    model = build(decoder_layers=1, test_cfg=dict(max_frames=10, sampling=sampling))
    streams, tensors, most = model.object_streams, [], []

    def watched(*arguments):
        most.append(held_frames())
        if len(arguments[0][0]) == 10:  # a full part and its reference
            tensors.append(tensor_bytes() if len(tensors) in (1, 2, 53, 54) else None)
        return streams(*arguments)

    monkeypatch.setattr(model, 'object_streams', watched)
    long = dict(item, frame_paths=item['frame_paths'] * 504, frame_numbers=range(504))
    sample = PackClip()(LoadGivenMasks()(long))['data_samples']
    assert held_frames() == 0  # packing reads none
    assert predict(model, sample).shape == (504, 16, 24)
    assert 0 < max(most) <= 11 + clip_readers.AHEAD
    early, *others = filter(None, tensors)
    assert others == [early] * 3
    held = [*sample.frames]
    assert held_frames() == len(held) == 504  # what is held counts


@pytest.mark.parametrize(
    ('frames', 'name'),
    [
        ([Frame(3, IMAGE, np.zeros((30, 44), np.uint8))], 'frame 3'),
        ([Frame(3, IMAGE, squares(0, 1, size=(30, 40)))], 'frame 3'),
        ([Frame(3, IMAGE, squares(0, 255))], 'void'),
        ([Frame(3, IMAGE, squares(0, 1).astype(int) * 300)], 'frame 3'),
        ([Frame(3, IMAGE, squares(0, 1) * 1.0)], 'frame 3'),
        ([Frame(3, IMAGE / 255)], 'frame 3'),
        ([Frame(3, IMAGE[..., 0])], 'frame 3'),
        ([Frame(3, None)], 'frame 3'),
        ([(3, IMAGE)], 'tuple'),
        ([Frame(0, IMAGE, squares(0, 1)), Frame(9, IMAGE[:20])], 'frame 9'),
        ([Frame(2, IMAGE), Frame(1, IMAGE)], '1 after 2'),
        ([Frame(1, IMAGE), Frame(1, IMAGE)], '1 after 1'),
    ],
)
def test_a_wrong_frame_is_named(frames, name):
    with pytest.raises(ValueError, match=name):
        [*ClipSession(build()).segment(frames)]


def test_a_file_of_another_size_is_named(sample, tmp_path):
    small = tmp_path / 'small.png'
    write_mask(small, np.zeros((10, 10), int))
    sample.frames = ClipFrames([*sample.frame_paths[:-1], str(small)], sample.ori_shape)
    with pytest.raises(ValueError, match=r'small\.png: 10×10.* 44×30'):
        predict(build(), sample)


WRONG = [
    (build, dict(query='both'), 'query'),
    (build, dict(aggregation='sum'), 'aggregation'),
    (build, dict(test_cfg=dict(max_frames=1)), 'max_frames'),
    (build, dict(test_cfg=dict(max_frames=2.5)), 'max_frames'),
    (build, dict(test_cfg=dict(sampling='random')), 'sampling'),
    (build, dict(test_cfg=dict(size=4)), 'size'),
    (build, dict(test_cfg=dict(scale='427')), 'scale'),
    (build, dict(test_cfg=dict(scale=(427, 0))), 'scale'),
    (lambda **options: ClipSession(build(), **options), dict(max_frames=1), 'max_frames'),
    (lambda **options: ClipSession(build(), **options), dict(references='a'), 'references'),
    *((propagation, dict(aggregation=value), 'aggregation') for value in ('mean', None)),
    *((propagation, {name: 0}, name) for name in ('top_k', 'temperature', 'num_maps', 'radius', 'edge_radius')),
]


@pytest.mark.parametrize(('make', 'options', 'name'), WRONG)
def test_wrong_options_of_models_and_sessions_are_named(make, options, name):
    with pytest.raises(ValueError, match=name):
        make(**options)


def test_frames_may_share_one_buffer(sample):
    """As with ``capture.read(buffer)``."""
    model, images = build(), [np.array(image) for image in sample.frames]
    mask, shared = sample.given[0].numpy(), np.empty_like(images[0])

    def follow(read):
        frames = (Frame(i, read(image), None if i else mask) for i, image in enumerate(images))
        return [ids for _, ids in ClipSession(model, max_frames=3).segment(frames)]

    def into_buffer(image):
        shared[:] = image
        return shared

    np.testing.assert_array_equal(follow(lambda image: image), follow(into_buffer))
