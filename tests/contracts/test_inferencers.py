"""What every inferencer promises, with the small models and inputs of ``inferencers.py``."""

import re
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from mmengine.config import Config

import mmattn.detection
import mmattn.language.captioning
import mmattn.language.grounding
import mmattn.language.translation
import mmattn.language.vqa
import mmattn.segmentation
import mmattn.video

from ..full_disk import full_disk
from ..language.files import STORED, edit_store
from ..language.world import in_double
from ..requirements import requires
from ..tiny_segmentors import spoil
from .inferencers import INFERENCERS, OTHER_MODELS, Images, Regions, Sentences

CASES = INFERENCERS | OTHER_MODELS
RESUMED = {name: case for name, case in INFERENCERS.items() if not issubclass(case, Images)}  # what was stopped


def named(names):
    """A parameter per name; the operators that detectors need are not everywhere."""
    marks = dict(detection=requires('mmcv operators'))
    return [pytest.param(*name, marks=marks.get(name[0], ())) for name in names]


def each(kind=object, cases=INFERENCERS):
    """The test of each inferencer of a kind."""
    names = [(name,) for name, case in cases.items() if issubclass(case, kind)]
    return pytest.mark.parametrize('case', named(names), indirect=True)


@pytest.fixture(scope='module')
def built(tmp_path_factory):
    return {}


@pytest.fixture
def case(request, built, tmp_path_factory):
    """The case of this name; data and model are made once."""
    if request.param not in built:
        built[request.param] = CASES[request.param](tmp_path_factory.mktemp(request.param))
    return built[request.param]


@pytest.fixture
def inferencer(case):
    """An inferencer that tests share, unless they change it."""
    case.shared = getattr(case, 'shared', None) or case.make(**case.parts[0])
    return case.shared


class Stopped(BaseException):
    """As Ctrl-C raises it."""


@pytest.fixture
def ran(case, inferencer, monkeypatch):
    """The batches that run, in a list that has ``limit``: after as many, the inferencer is stopped."""

    class Ran(list):
        limit = None

    owner, name = case.work(inferencer)
    work, ran = getattr(owner, name), Ran()

    def limited(*args, **options):
        if len(ran) == ran.limit:
            raise Stopped
        ran.append(args)
        return work(*args, **options)

    monkeypatch.setattr(owner, name, limited)
    return ran


def assert_same(found, expected, tolerance):
    """Values are equal, of dictionaries those that are expected; numbers within a tolerance, pixels within one."""
    if isinstance(expected, dict):
        for name, value in expected.items():
            assert_same(found[name], value, tolerance)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for pair in zip(found, expected):
            assert_same(*pair, tolerance)
    elif isinstance(expected, np.ndarray):
        assert found.shape == expected.shape
        assert np.abs(found - expected.astype(float)).max() < (1 if expected.dtype.kind == 'f' else 0.5)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, **tolerance)
    else:
        assert found == expected


def test_all_inferencers_are_here():
    language = mmattn.language.translation, mmattn.language.captioning, mmattn.language.vqa, mmattn.language.grounding
    rooms = mmattn.segmentation, mmattn.detection, mmattn.video, *language
    listed = {name for room in rooms for name in room.__all__ if name.endswith('Inferencer')}
    classes = {case.kind.__name__ for name, case in INFERENCERS.items() if name != 'detection'}
    assert listed == {*classes, 'DetectionInferencer'}


@each(cases=CASES)
def test_results_are_those_of_the_model_for_each_input_alone(case, tmp_path, monkeypatch):
    """By hand, without the inferencer; in any batches, and in the order of the inputs."""
    varied = set()
    for number, (options, call) in enumerate(case.ways):
        expected = [*case.expected(**call)]
        varied |= {str({name: x for name, x in one.items() if name not in ('name', 'image_id')}) for one in expected}
        inferencer = case.make(**options)
        if isinstance(case, Sentences):
            in_double(inferencer, monkeypatch)
        found = case.call(inferencer, tmp_path / f'{number}', **call)
        assert_same(found, expected, case.tolerance)
    assert len(varied) > len(expected) / 2  # the model is no constant
    if case.order:
        found = case.call(inferencer, tmp_path / 'reversed', case.items[::-2], **call)
        numbered = dict(enumerate(expected[::-2]))
        for number, one in numbered.items():
            assert_same(found[number], one | ({'question_id': number} if 'question_id' in one else {}), case.tolerance)
        assert len(found) == len(numbered)


@pytest.mark.parametrize(
    ('case', 'number'),
    named((name, number) for name, case in CASES.items() if 'bad' in vars(case) for number in range(len(case.bad))),
    indirect=['case'],
)
def test_errors_are_named_before_the_model_runs(case, number, inferencer, ran, tmp_path):
    """And nothing is written."""
    call, words = case.bad[number]
    ran.limit = 0
    with pytest.raises((OSError, TypeError, ValueError), match=words if isinstance(words, str) else str(tmp_path)):
        call(case, inferencer, tmp_path)
    assert not (tmp_path / 'out').exists()


def changed(case, path, change):
    checkpoint = torch.load(case.checkpoint)
    change(checkpoint)
    torch.save(checkpoint, path)
    return path


@each()
def test_weights_that_do_not_fit_are_refused(case, tmp_path):
    """The file is named, and what is wrong."""
    path = tmp_path / 'other.pth'
    names = [name for name, x in torch.load(case.checkpoint)['state_dict'].items() if x.is_floating_point()]

    def rename(checkpoint):
        checkpoint['state_dict']['other.weight'] = checkpoint['state_dict'].pop(names[0])

    faults = [
        (lambda: path, ''),
        (lambda: changed(case, path, rename), rf'(?=.*other\.weight).*{names[0]}'),
        (lambda: shutil.copy(case.checkpoint, path).write_bytes(path.read_bytes()[:-99]) and path, ''),
        *(
            (lambda meta=meta: changed(case, path, lambda x: x.update(meta=meta and dict(dataset_meta=meta))), words)
            for meta, words in case.metas
        ),
    ]
    for fault, words in faults:
        with pytest.raises((OSError, RuntimeError, ValueError), match=rf'(?s)(?=.*other\.pth).*{words}'):
            case.make(weights=fault())


@each()
def test_what_is_no_model_of_the_kind_is_refused(case):
    config, words = case.foreign
    for arguments, name in (
        (dict(config=config), words),
        (dict(config='missing.py'), r'missing\.py'),
        (dict(device='gpu'), 'gpu'),
        *([(dict(config={}), 'model must be')] if isinstance(case, Sentences) else []),
    ):
        arguments = dict(config=case.config, device='cpu') | arguments
        with pytest.raises((OSError, TypeError, ValueError), match=name):
            case.kind(arguments['config'], str(case.checkpoint), arguments['device'])
    if not case.untrained:
        with pytest.raises((TypeError, ValueError), match='weights'):
            case.kind(case.config, None, 'cpu')


@each(cases={name: case for name, case in INFERENCERS.items() if name != 'detection'})
def test_mixed_precision(case, tmp_path):
    """And a run without it does not continue one with it."""
    dtypes, faster = set(), case.make(amp=True)
    for module in faster.model.modules():
        if isinstance(module, torch.nn.Linear | torch.nn.Conv2d):
            module.register_forward_hook(lambda module, args, x: dtypes.add(x.dtype))
    assert case.call(faster, tmp_path)
    assert torch.bfloat16 in dtypes
    if isinstance(case, Images):
        return
    with pytest.raises(ValueError, match=r'differs in .*amp'):
        case.call(case.make(), tmp_path)


# Runs that are stopped.


@each(cases=RESUMED)
def test_a_stopped_run_continues(case, inferencer, ran, tmp_path):
    """The same results to the bit; no batch is processed twice, and none after the end."""
    whole, call = tmp_path / 'whole', case.parts[1]
    expected = case.call(inferencer, whole, **call)
    total = len(ran)
    assert total > 1
    for stop in {1, total - 1}:
        out = tmp_path / f'{stop}'
        ran.clear()
        ran.limit = stop
        with pytest.raises(Stopped):
            case.call(inferencer, out, **call)
        ran.limit = total
        assert_same(case.call(inferencer, out, **call), expected, dict(rel=0, abs=0))
        assert len(ran) == total
        assert_same(case.call(inferencer, out, **call), expected, dict(rel=0, abs=0))
        assert len(ran) == total
    ran.limit = None
    assert_same(case.call(inferencer, out, **call, **case.restart), expected, dict(rel=0, abs=0))
    assert len(ran) == 2 * total


@each(Sentences)
def test_a_batch_that_is_half_finished_is_processed_again(case, inferencer, tmp_path):
    """As a killed process leaves it. Equal in float32, too: rounding depends on the batch."""
    expected = case.call(inferencer, tmp_path, **case.parts[1])
    lines = (tmp_path / 'part').read_bytes().splitlines(keepends=True)
    for kept in (2, 4):  # the settings, and one or three results
        (tmp_path / 'part').write_bytes(b''.join(lines[:kept]) + lines[kept][:9])
        assert case.call(inferencer, tmp_path, **case.parts[1]) == expected


@each(Regions)
def test_features_are_read_with_their_batch(case, inferencer, ran, tmp_path):
    """So a run starts at once, and one that is not finite loses no result that was finished before it."""
    store = case.store(tmp_path / 'regions')
    with h5py.File(store / STORED) as file:
        start = file['first'][3]
    edit_store(store, 'features', lambda x: x.__setitem__(start, np.nan))
    items = [case.of(image) for image in ('7', '12', '40')]
    with pytest.raises(ValueError, match='image 40 '):
        case.run(inferencer, items, store, progress_file=tmp_path / 'part')
    assert len(ran) == 2  # the second has the damaged one
    assert len((tmp_path / 'part').read_text(encoding='utf-8').splitlines()) == 3  # the settings, and two results


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob('*') if path.is_file() and path.name != '.lock'}


@each(cases=RESUMED)
def test_results_of_another_run_are_refused_and_kept(case, inferencer, ran, tmp_path):
    """What differs is named; the model does not run."""
    case.call(inferencer, tmp_path, **case.parts[1])
    ran.limit, before = len(ran), contents(tmp_path)
    for options, words in case.other:
        with pytest.raises(ValueError, match=rf'differs in {words}\b'):
            case.call(inferencer, tmp_path, **case.parts[1] | options)

    def move(checkpoint):
        name = next(name for name, x in checkpoint['state_dict'].items() if x.is_floating_point())
        checkpoint['state_dict'][name] += 1e-3

    other = case.make(weights=changed(case, tmp_path.with_suffix('.pth'), move), **case.parts[0])
    with pytest.raises(ValueError, match='differs in weights'):
        case.call(other, tmp_path, **case.parts[1])
    assert contents(tmp_path) == before
    ran.limit, call = None, case.parts[1] | case.other[0][0]
    found = case.call(inferencer, tmp_path, **call, **case.restart)
    assert_same(found, case.call(inferencer, tmp_path / 'fresh', **call), dict(rel=0, abs=0))


@each(cases=RESUMED)
def test_files_of_another_origin_are_refused_and_kept(case, inferencer, ran, tmp_path):
    path, words = case.occupy(tmp_path)
    before, ran.limit = path.read_bytes(), 0
    with pytest.raises(ValueError, match=words):
        case.call(inferencer, tmp_path, **case.parts[1])
    assert path.read_bytes() == before


@each(cases=RESUMED)
def test_two_runs_cannot_share_their_output(case, inferencer, tmp_path, monkeypatch):
    """The second is refused while the first one runs, which is not disturbed."""
    expected = case.call(inferencer, tmp_path / 'alone', **case.parts[1])
    owner, name = case.work(inferencer)
    work = getattr(owner, name)

    def twice(*args, **options):
        with pytest.raises(BlockingIOError, match=str(tmp_path / 'out')):
            case.call(inferencer, tmp_path / 'out', **case.parts[1])
        return work(*args, **options)

    monkeypatch.setattr(owner, name, twice)
    assert_same(case.call(inferencer, tmp_path / 'out', **case.parts[1]), expected, dict(rel=0, abs=0))


@each(cases=RESUMED)
def test_a_full_disk_is_named_and_loses_no_finished_result(case, inferencer, ran, tmp_path):
    """What was finished is not processed again."""
    expected = case.call(inferencer, tmp_path / 'whole', **case.parts[1])
    total, largest = len(ran), max(path.stat().st_size for path in contents(tmp_path))
    with full_disk(largest // 2), pytest.raises(OSError, match=rf'File too large.*{tmp_path}/out|{tmp_path}/out.*too'):
        case.call(inferencer, tmp_path / 'out', **case.parts[1])
    assert not [path for path in (tmp_path / 'out').rglob('.*') if path.name != '.lock']  # no temporary file
    assert_same(case.call(inferencer, tmp_path / 'out', **case.parts[1]), expected, dict(rel=0, abs=0))
    assert len(ran) <= 2 * total + 1


@each(Images, INFERENCERS)
def test_configs_that_say_the_same_have_the_same_results(case, inferencer, tmp_path):
    expected = case.call(inferencer, tmp_path / 'as it is', case.items[:2])
    for number, change in enumerate(case.same):
        change(cfg := Config.fromfile(case.config))
        found = case.call(case.make(cfg), tmp_path / f'{number}', case.items[:2])
        assert_same(found, expected, dict(rel=0, abs=0))


@each(Images)
def test_bad_images_do_not_lose_the_results_of_the_others(case, inferencer, tmp_path):
    """They are named at the end."""
    expected = case.call(inferencer, tmp_path / 'alone', **case.parts[1])
    folder, out = tmp_path / 'images', tmp_path / 'out'
    shutil.copytree(case.folder / 'images', folder)
    bad = spoil(folder)
    with pytest.raises(ValueError, match=rf'{len(bad)} of {len(bad) + len(expected)} images.*others') as raised:
        case.call(inferencer, out, folder, **case.parts[1])
    assert [Path(name).stem for name in re.findall(r'^  (.*?): ', str(raised.value), re.MULTILINE)] == bad
    written = {path.relative_to(out): path.read_bytes() for path in out.rglob('*.*')}
    assert written == {
        path.relative_to(out.with_name('alone')): path.read_bytes() for path in out.with_name('alone').rglob('*.*')
    }
