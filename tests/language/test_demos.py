"""The four tools that ask a trained model: what they write, runs that were stopped, files that exist, and errors."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
from PIL import Image

from mmattn.language.captioning import CaptionInferencer
from mmattn.language.grounding.inferencer import GroundingInferencer
from mmattn.language.translation.inferencer import TranslationInferencer
from mmattn.language.vqa.inferencer import VQAInferencer

from .files import content, names
from .world import IDS, PHRASES, SIZE

TOOLS = Path(__file__).parents[2] / 'tools'
SEARCH = dict(beam=2, length_penalty=0.2, n_best=2)


class Stop(ValueError):
    pass


class Demo:
    """A tool, with the arguments of its inferencer; options of both have the same names."""

    file, options, batch = 'captions.json', SEARCH, dict(batch_size=2)

    def __init__(self, world):
        self.folder, trained = world.folder, getattr(world, self.model)
        self.trained = [str(trained.config), str(trained.checkpoint)]

    def words(self, out, **options):
        spelled = [word for name, x in options.items() for word in (f'--{name.replace("_", "-")}', x)]
        return [*self.trained, *self.input, '--device', 'cpu', '--out', out, *spelled]

    def written(self, **options):
        """What Python returns, as the tool writes it."""
        paths = [self.folder / word for word in self.input if not word.startswith('--')]
        predictions = self.ask(self.kind(*self.trained, 'cpu', **self.batch), *paths, **options)['predictions']
        return self.format(predictions, 'n_best' in options)

    def ask(self, inferencer, *paths, **options):
        return inferencer(*paths, **options)

    def format(self, predictions, n_best):
        return json.dumps(predictions, ensure_ascii=False)


class Translation(Demo):
    tool, kind, model, file = 'translation_demo.py', TranslationInferencer, 'translator', 'lines.de'
    input, batch = ['lines.en'], dict(batch_tokens=40)

    def words(self, out, **options):
        return super().words(out / 'lines.de', **options)

    def format(self, predictions, n_best):
        if not n_best:
            return ''.join(f'{each["text"]}\n' for each in predictions)
        rows = [(number, each) for number, line in enumerate(predictions, 1) for each in line['n_best']]
        return ''.join(f'{number}\t{each["score"]:.6f}\t{each["text"]}\n' for number, each in rows)


class Caption(Demo):
    tool, kind, model = 'caption_demo.py', CaptionInferencer, 'eta'
    input, options = ['--regions', 'regions', '--attributes', 'attributes.json'], SEARCH | dict(num_attributes=1)

    def ask(self, inferencer, store, attributes, **options):
        return inferencer(store, None, attributes, **options)

    def format(self, predictions, n_best):
        kept = ('image_id', 'caption', 'n_best') if n_best else ('image_id', 'caption')
        records = [{name: each[name] for name in kept} for each in predictions]
        return json.dumps([each | dict(image_id=int(each['image_id'])) for each in records])


class Answer(Demo):
    tool, kind, model, file = 'vqa_demo.py', VQAInferencer, 'ban', 'answers.json'
    input, options = ['--regions', 'regions', '--questions', 'questions.json'], dict(top_k=2)


class Phrase(Demo):
    tool, kind, model, file = 'grounding_demo.py', GroundingInferencer, 'grounder', 'phrases.json'
    input, options = ['--regions', 'regions', '--captions', 'captions.txt'], dict(top_k=2)

    def ask(self, inferencer, store, _, **options):
        return inferencer(store, PHRASES, **options)


@pytest.fixture(params=[Translation, Caption, Answer, Phrase], ids=lambda kind: kind.__name__)
def demo(request, world, monkeypatch):
    monkeypatch.chdir(world.folder)
    return request.param(world)


@pytest.fixture
def call(demo, run_tool):
    """``call(out, *more, **options)`` runs the tool in this process."""
    return lambda out, *more, **options: run_tool(TOOLS / demo.tool, *demo.words(out, **demo.batch | options), *more)


@pytest.mark.parametrize('chosen', [False, True])
def test_the_file_has_what_python_returns_with_the_same_options(demo, call, tmp_path, chosen):
    options = demo.options if chosen else {}
    call(tmp_path / 'new', **options)
    assert names(tmp_path / 'new') == [demo.file]
    assert (tmp_path / 'new' / demo.file).read_text(encoding='utf-8') == demo.written(**options)


def test_a_stopped_run_is_resumed_or_begun_anew(demo, call, tmp_path, monkeypatch):
    whole, out, part = tmp_path / 'whole', tmp_path / 'out', f'{demo.file}.part'
    call(whole)
    forward, ran = demo.kind.forward, []

    def limited(self, batch, **options):
        ran.append(batch.indices)
        if len(ran) == 2:
            raise Stop('stopped')
        return forward(self, batch, **options)

    monkeypatch.setattr(demo.kind, 'forward', limited)
    with pytest.raises((Stop, SystemExit)):
        call(out)
    assert names(out) == [part]
    name, value = next(iter(demo.options.items()))
    with pytest.raises((SystemExit, ValueError), match=f'differs in {name}'):
        call(out, '--resume', **{name: value})
    call(out, '--resume')
    assert content(out) == content(whole)
    assert ran[0] not in ran[1:]
    (out / part).write_bytes(b'of another run\n')
    call(out, '--overwrite')
    assert content(out) == content(whole)


def test_output_that_exists_is_kept(demo, call, tmp_path, monkeypatch):
    monkeypatch.setattr(demo.kind, '__init__', None)
    for name in (demo.file, f'{demo.file}.part'):
        (tmp_path / name).write_bytes(b'precious')
        with pytest.raises((FileExistsError, SystemExit)) as caught:
            call(tmp_path)
        assert str(tmp_path / name) in str(caught.value)
        assert content(tmp_path) == {name: b'precious'}
        (tmp_path / name).unlink()


S, A = '--regions regions', '--regions regions --attributes attributes.json --out new'
FAILURES = [  # the models, the words of the command line, and what the message names
    ('translator', 'lines.en --resume', '--out'),
    ('translator', 'lines.en --out lines.en --overwrite', 'lines.en'),
    ('translator', 'lines.en --out new.de --max-source-length 14', 'line 3: .*max_source_length'),
    ('translator', 'lines.en --out new.de --attention maps --attention-layer 5', 'layer'),
    ('eta', f'{A} --split val', '--ann-file'),
    ('eta', f'{A} --page-images 0', '--page-images'),
    ('eta', f'{A} --ids 99 7', 'image 99'),
    ('eta', f'{A} --ann-file dataset.json', 'split'),
    ('eta', f'{A} --ann-file dataset.json --split val --ids 7', '--ids.* 7$'),
    ('eta', f'{S} --attributes out/captions.json.part --out out --overwrite', 'captions.json.part'),
    ('eta', f'{A} --images none', 'none'),
    ('eta', f'{A} --images spoilt', 'image 41\n.*image 3\n.*image 8'),
    ('eta', f'{A} --images spoilt --page-images 3', '12.png: 40×60.*\n.*5.png'),
    ('eta', f'{S} --attributes attributes.json --out full --images photos', 'captions.html'),
    ('eta', f'san.py {A}', 'CHECKPOINT'),
    ('san san', f'{A} --names a b', '--attributes'),
    ('san eta', f'{S} --out new', 'attributes must'),
    ('ban', S, '--questions'),
    ('ban', f'{S} 7 " "', '--questions'),
    ('ban', f'{S} 7 dog --questions questions.json', '--questions'),
    ('ban', f'{S} --questions questions.json', '--out'),
    ('ban', f'{S} 7 dog --resume', '--resume'),
    ('ban', f'{S} 7 dog --picture a.png', '--picture'),
    ('ban', f'{S} 99 dog', 'image 99'),
    ('ban', f'{S} 7 ?', 'question'),
    ('ban', f'{S} 7 dog --out new --picture none.png', 'none.png'),
    ('ban', f'{S} 7 dog --out new --picture spoilt/5.png', '5.png'),
    ('ban', f'{S} 7 dog --out new --picture spoilt/12.png', '12.png: 40×60'),
    ('ban', f'{S} 7 dog --out full', 'attention.png'),
    ('ban', '--images pictures 7 dog', '--regions'),
    ('reader', f'{S} 7 dog', '--images'),
    ('mcan', f'{S} 7 dog --out new', 'MCAN'),
    ('grounder', f'{S} 7', '--captions'),
    ('grounder', f'{S} 7 [a] --captions captions.txt', '--captions'),
    ('grounder', f'{S} --captions captions.txt', '--out'),
    ('grounder', f'{S} --captions captions.txt --out new --picture a.png', '--picture'),
    ('grounder', f'{S} 7 [a] --resume', '--captions'),
    ('grounder', f'{S} 7 [a] --picture a.png', '--picture'),
    ('grounder', f'{S} 7 [a] --entities a.json', '--entities'),
    ('grounder', f'{S} 7 [a] --out new --picture none.png', 'none.png'),
    ('grounder', f'{S} 7 [a] --out new --picture spoilt/5.png', '5.png'),
    ('grounder', f'{S} 7 [a] --out full', 'phrases.png'),
    ('grounder', f'{S} 99 "[a dog]"', 'image 99'),
    ('grounder', f'{S} --captions lines.en --out new', 'lines.en: .*\n.*line 1: .*\n.*line 2: '),
    ('grounder', f'{S} --captions out/phrases.json.part --out out --overwrite', 'phrases.json.part'),
]
TOOL_OF = dict(translator='translation', eta='caption', san='caption', grounder='grounding')


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob('*') if path.is_file()}


@pytest.mark.parametrize(('models', 'words', 'named'), FAILURES)
def test_errors_of_a_command_line_write_and_replace_nothing(world, refuse, tmp_path, monkeypatch, models, words, named):
    """And come before any work, unless a question is asked alone."""
    for kind in (TranslationInferencer, CaptionInferencer, GroundingInferencer):
        monkeypatch.setattr(kind, 'forward', None)
    monkeypatch.chdir(tmp_path)
    for path in world.folder.iterdir():
        Path(path.name).symlink_to(path)
    for name in ('spoilt', 'full', 'out'):
        Path(name).mkdir()
    for name in IDS[:4]:
        Image.new('RGB', (23, 15)).save(f'spoilt/{name}.png')  # reduced, and rounded
    Image.new('RGB', SIZE[::-1]).save('spoilt/12.png')
    for name in ('attention.png', 'captions.html', 'phrases.png'):
        Path('full', name).write_bytes(b'precious')
    for name in ('captions.json.part', 'phrases.json.part'):
        shutil.copy('captions.txt' if 'phrases' in name else 'attributes.json', f'out/{name}')
    Path('spoilt/5.png').write_bytes(b'')
    before = files(tmp_path)
    trained = [f'{name}{suffix}' for name in models.split() for suffix in ('.py', '.pth')]
    tool = TOOL_OF.get(models.split()[-1], 'vqa')
    refuse(named, TOOLS / f'{tool}_demo.py', *trained, *shlex.split(words), '--device', 'cpu')
    assert files(tmp_path) == before
