"""Exports without a network of mmseg: requirements, files, and messages."""

import json
import logging
import os
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from torch import nn

from mmattn.deployment import exporter
from mmattn.deployment.exporter import MIN_TORCH, check_requirements, export_network, write_onnx
from mmattn.deployment.metadata import describe_network
from mmattn.deployment.network import LogitsNetwork, load_segmentor
from mmattn.deployment.pt2 import load_pt2, quiet, write_pt2
from mmattn.ops import dynamic_conv


def test_requirements_are_named(monkeypatch):
    monkeypatch.setattr(torch, '__version__', f'{MIN_TORCH[0]}.{MIN_TORCH[1]}.0+cpu')
    check_requirements('torch', 'numpy')
    with pytest.raises(ImportError, match=r'^no_one and nothing .*mmattn\[export\]'):
        check_requirements('no_one', 'torch', 'nothing')
    for version in ('2.4.1', f'{MIN_TORCH[0]}.{MIN_TORCH[1] - 1}.9'):
        monkeypatch.setattr(torch, '__version__', version)
        for call in (check_requirements, lambda: export_network(nn.Identity()), lambda: write_onnx(None, '', {})):
            with pytest.raises(ImportError, match=rf'2\.13 .*got {version}'):
                call()


def test_weights_fit_into_one_file(monkeypatch):
    """Not more than 1,536 MiB."""
    monkeypatch.setattr(exporter, 'check_requirements', lambda *names: None)
    program = SimpleNamespace(state_dict=dict(a=SimpleNamespace(nbytes=2**30), b=SimpleNamespace(nbytes=2**29 + 2**20)))
    with pytest.raises(ValueError, match=r'1536 MiB .*got 1537 MiB'):
        write_onnx(program, '', {})
    program.state_dict['b'].nbytes = 2**29
    with pytest.raises(Exception, match='SimpleNamespace'):  # of torch's exporter, the next step
        write_onnx(program, '', {})


class Convolves(nn.Module):
    """By an operator of mmattn."""

    def forward(self, image):
        maps = image.movedim(1, -1).unsqueeze(1)
        return dynamic_conv(maps, maps, kernel_size=(1, 3)).squeeze(1).movedim(-1, 1)


class Doubles(nn.Module):
    def forward(self, image):
        return image * 2


can_export = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split('.')[:2])) < MIN_TORCH, reason='torch is too old to export'
)


@can_export
def test_without_a_size_batch_height_and_width_are_dynamic():
    """Of sides from 64 pixels on."""
    exported = export_network(Doubles()).module()
    for shape in ((1, 3, 64, 64), (3, 3, 70, 101), (2, 3, 129, 195)):
        image = torch.randn(shape)
        assert torch.equal(exported(image), 2 * image)
    for shape in ((1, 3, 63, 64), (1, 3, 64, 63), (1, 4, 64, 64)):
        with pytest.raises((AssertionError, RuntimeError)):  # by the version of torch
            exported(torch.randn(shape))


@can_export
def test_a_network_may_accept_some_sizes_alone_and_read_files():
    """Here odd widths; others are an error when the file runs."""

    class OddWidths(nn.Module):
        def forward(self, image):
            Path(os.devnull).read_bytes()
            image = image[..., 1:]
            return image + image[..., ::2].repeat_interleave(2, -1)

    network = OddWidths()
    exported, image = export_network(network).module(), torch.randn(1, 3, 64, 65)
    assert torch.equal(exported(image), network(image))
    with pytest.raises(RuntimeError):
        exported(torch.randn(1, 3, 64, 66))


@can_export
def test_an_onnx_file_has_the_program_and_its_metadata(monkeypatch, tmp_path):
    """By a stand-in for torch's exporter, which takes seconds; the files themselves are in ``test_export.py``."""
    monkeypatch.setattr(exporter, 'check_requirements', lambda *names: None)
    written = SimpleNamespace(model=SimpleNamespace(metadata_props={}))
    written.save = lambda path: Path(path).write_text(json.dumps(written.model.metadata_props), encoding='utf-8')
    exported = []
    monkeypatch.setattr(torch.onnx, 'export', lambda program, **settings: exported.append(program) or written)
    program, about = export_network(Convolves(), (4, 5)), dict(classes=['a', 'ä'])
    assert program.graph_module.code.count('mmattn') == 1
    write_onnx(program, tmp_path / 'a.onnx', about)
    assert exported == [program]
    found = json.loads((tmp_path / 'a.onnx').read_text(encoding='utf-8'))
    assert {key: json.loads(text) for key, text in found.items()} == {'mmattn': about}
    assert [path.name for path in tmp_path.iterdir()] == ['a.onnx']


@can_export
def test_a_file_of_torch_export_has_the_network_and_its_metadata(tmp_path):
    """A file without metadata is not one of the tools."""
    program = export_network(Doubles(), (3, 5))
    metadata = dict(classes=['a', 'ä'])
    write_pt2(program, tmp_path / 'a.pt2', metadata)
    loaded, found = load_pt2(tmp_path / 'a.pt2')
    image = torch.randn(1, 3, 3, 5)
    assert torch.equal(loaded(image), 2 * image)
    assert found == metadata
    assert [path.name for path in tmp_path.iterdir()] == ['a.pt2']
    torch.export.save(program, tmp_path / 'b.pt2')
    with pytest.raises(ValueError, match=r'b\.pt2 has no mmattn\.json'):
        load_pt2(tmp_path / 'b.pt2')


@pytest.mark.parametrize('align_corners', [False, True])
def test_logits_are_resized_to_the_image_as_the_segmentor_aligns_them(align_corners):
    logits = torch.arange(12.0).view(1, 2, 2, 3) ** 2

    class Segmentor(nn.Module):
        def forward(self, image, mode):
            assert mode == 'tensor'
            return logits

    segmentor = Segmentor()
    segmentor.align_corners = align_corners
    found = LogitsNetwork(segmentor)(torch.zeros(1, 3, 5, 9))
    expected = nn.functional.interpolate(logits, (5, 9), mode='bilinear', align_corners=align_corners)
    assert torch.equal(found, expected)


def test_messages_of_the_exporters_are_silent_for_a_while(recwarn):
    logger = logging.getLogger('torch.onnx')
    before = logger.level
    with quiet():
        assert logger.level == logging.ERROR
        for kind in (FutureWarning, UserWarning, DeprecationWarning):
            warnings.warn('x', kind, stacklevel=1)
    assert logger.level == before
    assert [warning.category for warning in recwarn] == [DeprecationWarning]


def test_a_network_of_other_channels_is_not_described():
    data = dict(mean=torch.zeros(4, 1, 1), std=torch.ones(4, 1, 1))
    cfg = Config(dict(model=dict(data_preprocessor=dict())))
    with pytest.raises(ValueError, match=r'3 channels; .* 4$'):
        describe_network(cfg, SimpleNamespace(data_preprocessor=SimpleNamespace(**data)))


@pytest.mark.parametrize('kind', ['mmattn.SST', 'NoSuch', nn.Identity])
def test_a_model_that_is_no_segmentor_is_named_before_its_weights_are_read(kind):
    with pytest.raises(ValueError, match=r'model\.type.*(SST|NoSuch|Identity)'):
        load_segmentor(Config(dict(model=dict(type=kind))), 'absent.pth')
