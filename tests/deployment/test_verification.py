"""The comparison of two results, and their time and memory."""

import math
import warnings

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
def test_the_memory_of_a_result_is_its_peak_beyond_what_was_loaded():
    """Of 64 MiB, which are freed. 32 MiB of weights stay, and 256 MiB were freed before."""

    def prepare(_):
        np.ones(2**25)
        weights = np.ones(2**22)
        return lambda image: np.full(2**23, weights[0])[: image.size].copy()

    run = verification._measure(prepare, None, np.ones(3), 1)
    np.testing.assert_array_equal(run.logits, np.ones(3))
    assert run.mebibytes == pytest.approx(64, abs=6)
