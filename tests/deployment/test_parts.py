"""Parts of an export without a network of mmseg: files, metadata, requirements, and the comparison of two results."""

import logging
import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import Config
from torch import nn

from mmattn.deployment import exporter, verification
from mmattn.deployment.exporter import MIN_TORCH, check_requirements, export_network, write_onnx
from mmattn.deployment.metadata import describe_network
from mmattn.deployment.pt2 import load_pt2, quiet, write_pt2
from mmattn.deployment.verification import compare


def test_results_are_compared_by_their_labels():
    """With one logit, labels are those of a threshold of its sigmoid."""
    first = np.zeros((1, 2, 2, 2))
    first[0, :, 0, 0], first[0, :, 1, 1] = (1, -3), (2, 2.5)
    second = first.copy()
    second[0, :, 1, 1] = 2.5, 2
    assert compare(first, second) == (0.5, 5.5, 0.75)
    logits = np.array([0.0, 1.0, 2.0, -1.0]).reshape(1, 1, 2, 2)
    for threshold, equal in ((0.5, 0.75), (0.7, 1.0), (0.75, 0.75)):
        assert compare(logits, logits + [[[[0.125, 0.125], [0, 0]]]], threshold) == (0.125, 3.0, equal)
    with pytest.raises(ValueError, match=r'\(1, 1, 2, 2\) and \(1, 2, 2, 2\)'):
        compare(logits, first)


def test_a_network_is_run_once_and_then_timed(monkeypatch):
    """The time is the median. A network is run without gradients."""
    made, clock = [], []

    class Net(nn.Module):
        def forward(self, x):
            made.append(torch.is_grad_enabled())
            clock.append([90.0, 3.0, 1.0, 2.0][len(made) - 1])
            print('loading')
            return 2 * x

    monkeypatch.setattr(verification.time, 'perf_counter', lambda: sum(clock))
    image = np.ones((1, 3, 2, 2), np.float32)
    found = verification._measure(verification._torch, Net, image, 3)
    np.testing.assert_array_equal(found.logits, 2 * image)
    assert found.seconds == 2.0
    assert made == [False] * 4


@pytest.mark.skipif(math.isnan(verification._memory_at_start()), reason='Linux reports no memory here')
def test_the_memory_of_a_result_is_its_peak():
    """Of 64 MiB, which are freed; not of what was loaded, of which 256 MiB are freed before."""

    def prepare(_):
        np.ones(2**25)
        return lambda image: (np.ones(2**23), image)[1]

    assert verification._measure(prepare, None, np.ones(1), 1).mebibytes == pytest.approx(64, abs=6)


def test_each_image_has_a_process_of_its_own(monkeypatch):
    started = []

    class Pool:
        def __init__(self, count):
            started.append(count)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def apply(self, function, arguments):
            return (function, *arguments)

    monkeypatch.setattr(
        'multiprocessing.get_context', lambda kind: SimpleNamespace(Pool=Pool) if kind == 'spawn' else None
    )
    measure, of_torch, of_onnx = verification._measure, verification._torch, verification._onnx
    assert verification.run_torch('load', ['a', 'b']) == [(measure, of_torch, 'load', image, 3) for image in 'ab']
    assert verification.run_onnx('a.onnx', ['a'], 4, 2) == [(measure, of_onnx, ('a.onnx', 4), 'a', 2)]
    assert verification.run_onnx('a.onnx', ['a'], 4)[0][-1] == 3
    assert started == [1, 1, 1, 1]


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
    with pytest.raises(AttributeError, match='run_decompositions'):  # the next step
        write_onnx(program, '', {})


class Doubles(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, image):
        self.calls += 1
        return image * 2


@pytest.mark.skipif(tuple(map(int, torch.__version__.split('.')[:2])) < MIN_TORCH, reason='torch is too old to export')
def test_a_file_of_torch_export_has_the_network_and_its_metadata(tmp_path):
    """The network has run before it is traced. A file without metadata is not one of the tools."""
    network = Doubles()
    program = export_network(network, (3, 5))
    assert network.calls > 0
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
