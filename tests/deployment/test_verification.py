"""The comparison of two results, and their time and memory."""

import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from mmattn.deployment import verification
from mmattn.deployment.verification import compare

from ..requirements import requires


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


def test_what_loading_says_is_dropped(capsys, recwarn):
    """The export has said it, too."""

    def prepare(_):
        print('known')
        warnings.warn('known', stacklevel=1)
        return lambda image: image

    verification._measure(prepare, None, np.ones(1), 1)
    assert capsys.readouterr().out == ''
    assert not recwarn.list


@requires('onnx', 'onnxruntime')
def test_the_first_output_of_an_onnx_file_is_that_of_its_only_input(tmp_path, monkeypatch):
    import onnxruntime
    from onnx import TensorProto, helper, save

    sessions, start = [], onnxruntime.InferenceSession
    monkeypatch.setattr(
        onnxruntime, 'InferenceSession', lambda *a, **k: sessions.append(start(*a, **k)) or sessions[-1]
    )
    x, y, z = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 'h', 'w']) for name in ('x', 'y', 'z'))
    nodes = [helper.make_node('Add', ['x', 'x'], ['y']), helper.make_node('Neg', ['x'], ['z'])]
    graph = helper.make_graph(nodes, 'doubles', [x], [y, z])
    opset = helper.make_opsetid('', 18)
    save(helper.make_model(graph, opset_imports=[opset], ir_version=8), tmp_path / 'a.onnx')
    image = np.arange(12, dtype=np.float32).reshape(1, 3, 2, 2)
    for threads in (1, 2):
        run = verification._onnx((str(tmp_path / 'a.onnx'), threads))
        np.testing.assert_array_equal(run(image), 2 * image)
        assert sessions[-1].get_session_options().intra_op_num_threads == threads
        assert sessions[-1].get_providers() == ['CPUExecutionProvider']


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
