"""Every inferencer with a small trained model, inputs, their results by hand, and what is an error."""

import json
import os
import shutil
from functools import partial

import mmcv
import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmseg.models import EncoderDecoder
from mmseg.registry import TRANSFORMS
from PIL import Image

from mmattn.language.captioning import CaptionInferencer
from mmattn.language.grounding.inferencer import GroundingInferencer
from mmattn.language.models.generation import LengthPenalty, beam_search
from mmattn.language.regions.region_store import RegionStore
from mmattn.language.text.subwords import TextProcessor, undo_bpe
from mmattn.language.text.vocabulary import EOS, Vocabulary
from mmattn.language.translation.inferencer import TranslationInferencer
from mmattn.language.vqa.inferencer import VQAInferencer
from mmattn.language.vqa.transforms import read_picture
from mmattn.segmentation.inferencer import SegmentationInferencer
from mmattn.utils.channels import as_picture
from mmattn.utils.paths import config_path
from mmattn.video.inferencer import VOSInferencer
from mmattn.video.masks import PALETTE, read_mask, read_palette, write_mask
from mmattn.video.session import ClipSession

from .. import tiny_segmentors as segmentation
from ..language import files, world
from ..tiny_detectors import PIPELINE, detector
from ..video import clips
from ..video.conftest import write_small_sst

SEGMENTOR = config_path('bi_cc/bi-cc_r18-d8-half_1xb8-50_buildings-256x256.py')
VIDEO = config_path('sst/sst-grid_r18-d8-half_1xb4-400_davis-240p.py')


class Case:
    kind: type
    ways = (({}, {}),)  # options of the constructor and of a call, in each of which results are compared
    parts = {}, {}  # of these, a way that divides the inputs into several batches
    order = True  # results are in the order of the inputs
    other: tuple = ()  # options of another run, and what a message says of them
    restart = dict(resume=False)  # options of a call that discards an earlier run
    bad: tuple = ()  # calls that are errors before the model runs, and words of the message
    metas: tuple = ()  # dataset_meta of a checkpoint that does not fit, and words of the message
    foreign = Config(dict(model=dict(type='mmattn.TokenEmbedding', vocab_size=8, embed_dim=8))), 'TokenEmbedding'
    untrained = False  # weights may be None, for trials
    same: tuple = ()  # changes of the config that change no result
    tolerance: dict = {}

    def work(self, inferencer):
        """What processes a batch: an object and the name of its method."""
        return inferencer, 'forward'

    def make(self, config=None, weights=None, **options):
        weights = str(weights or self.checkpoint)
        return self.kind(config or self.config, weights, 'cpu', show_progress=False, **options)

    def call(self, inferencer, out, items=None, **options):
        """The results, one per input, of a run whose output is in the folder ``out``."""
        raise NotImplementedError

    def occupy(self, out):
        """Write a file of another origin where the output goes. Returns its path and what a message says."""
        path = out / 'part'
        path.write_text('precious\n', encoding='utf-8')
        return path, 'part, line 1'


class Sentences(Case):
    tolerance = dict(rel=0, abs=1e-10)

    def __init__(self, folder):
        trained = self.write(folder)
        self.folder, self.config, self.checkpoint = folder, trained.config, trained.checkpoint

    def call(self, inferencer, out, items=None, **options):
        items = self.items if items is None else items
        return self.run(inferencer, items, progress_file=out / 'part', **options)['predictions']


class Translation(Sentences):
    kind = TranslationInferencer
    items = [world.LINES[i] for i in (0, 1, 2, 7, 9)]
    ways = tuple((dict(batch_tokens=size), dict(n_best=n)) for size, n in ((23, 1), (60, 3), (4096, 2)))
    parts = dict(batch_tokens=23), dict(n_best=np.int64(2))
    other = (
        (dict(beam=4), 'beam'),
        (dict(n_best=3), 'n_best'),
        (dict(length_penalty=np.float32(0.5)), 'length_penalty'),
        (dict(items=items[1:]), 'input'),
    )
    bad = (
        (lambda case, ask, _: ask(case.items, max_source_length=14), 'line 3: .*max_source_length'),
        (lambda case, ask, _: ask(['a', 'b ' * 61]), 'line 2: batch_tokens'),
        (lambda case, ask, _: ask(['a'], n_best=4), 'n_best'),
        (lambda case, ask, _: ask(['a'], beam=0), 'beam'),
        (lambda case, ask, _: ask(['a'], length_penalty='1'), 'alpha'),
        (lambda case, ask, _: ask(['a dog\r\n', 'a dog\ra man'], name='lines.en'), 'lines.en, line 2'),
        (lambda case, ask, folder: ask(write(folder / 'a.en', b'a dog\ra man\r')), 'a.en, line 1'),
        (lambda case, ask, folder: ask(write(folder / 'a.en', b'a\nb\n\xfc\n')), 'a.en, line 3'),
        (lambda case, ask, folder: ask(str(write(folder / 'a.en', b'a'))), r"Path\('.*a.en"),
        (lambda case, ask, _: ask(['a', 3]), 'inputs .*int'),
        (lambda case, ask, folder: ask(folder / 'missing.en'), 'missing.en'),
        (lambda case, *_: case.make(batch_tokens=0), 'batch_tokens'),
    )
    meta = world.CORPUS
    metas = (
        ({}, 'source, target, lowercase, moses, symbols, codes'),
        ({name: x for name, x in meta.items() if name != 'codes'}, 'codes'),
        (dict(meta, symbols=[*meta['symbols'], 'more']), rf'model\.vocab_size={5 + len(meta["symbols"])}$'),
        (dict(meta, symbols=[*meta['symbols'][:-1], 'a']), "symbols .*'a'"),
        (dict(meta, moses=dict(unknown=True)), 'unknown'),
        (dict(meta, codes=['t h e']), 'codes'),
        (dict(meta, source='xx'), 'language'),
    )

    def write(self, folder):
        return world.write_model(folder, 'model', world.TRANSLATOR)

    def run(self, inferencer, items, **options):
        return inferencer(items, **options)

    @torch.no_grad()
    def expected(self, n_best):
        """By the stages of the pipeline, written out."""
        model, vocabulary = world.random_model(world.TRANSLATOR).double(), Vocabulary(self.meta['symbols'])
        source = TextProcessor('en', self.meta['codes'], True, escape=True)
        target = TextProcessor('de', None, True, escape=True)
        for line in self.items:
            pieces, pairs = source.segment(source.tokenize(line)).split(), [('', 0.0)]
            if pieces:
                memory, mask = model.encode(torch.tensor([vocabulary.encode(' '.join(pieces))]))
                options = dict(beam=3, max_length=len(pieces) + 4, length_penalty=LengthPenalty(1.0), first=EOS)
                [hypotheses] = beam_search(model.step, model.decoder.start(memory, mask), 1, **options)
                texts = [target.detokenize(undo_bpe(vocabulary.decode(x.tokens))) for x in hypotheses]
                pairs = [*zip(texts, (x.score for x in hypotheses))][:n_best]
            yield dict(text=pairs[0][0], score=pairs[0][1], n_best=[dict(text=text, score=x) for text, x in pairs])


class Regions(Sentences):
    """Inferencers of the images in a region store."""

    ways = tuple((dict(batch_size=size), dict(top_k=k)) for size, k in ((1, 1), (2, np.int64(3)), (64, 99)))
    parts = dict(batch_size=2), dict(top_k=2)
    store = partial(world.write_store)
    bad = (
        (lambda case, ask, _: case.run(ask, [case.of('7'), case.of('99'), case.of('x')]), 'image 99.*\n.*image x'),
        (lambda case, ask, folder: case.run(ask, case.items, folder / 'none'), 'none'),
        (lambda case, ask, folder: case.run(ask, case.items, case.store(folder / 'narrow', width=5)), '5 features'),
        (lambda case, ask, _: case.run(ask, case.items, 3), 'inputs'),
        (lambda case, ask, _: case.run(ask, case.items, [case.regions, 3]), 'inputs'),
        (lambda case, *_: case.make(batch_size=0), 'batch_size'),
    )

    def __init__(self, folder):
        super().__init__(folder)
        self.regions = self.store(folder / 'regions')

    def run(self, inferencer, items, store=None, **options):
        if store == 'touched':  # the files of another store
            os.utime(self.regions / files.STORED, (1, 1))
        return inferencer(self.regions if store in (None, 'touched') else store, items, **options)


class Captions(Regions):
    kind, store = CaptionInferencer, partial(world.write_store)
    model_config, reads_attributes = world.ETA, True
    items = world.IDS
    of = staticmethod(lambda image: image)
    ways = tuple((dict(batch_size=size), dict(n_best=n)) for size, n in ((1, 1), (3, 3), (50, np.int64(2))))
    parts = dict(batch_size=2), dict(n_best=2)
    other = (
        (dict(beam=2), 'beam'),
        (dict(n_best=np.int64(3)), 'n_best'),
        (dict(num_attributes=1), 'attributes'),
        (dict(items=items[:3]), 'image_ids, attributes'),
        (dict(store='touched'), 'regions'),
    )
    bad = (
        *Regions.bad,
        (lambda case, ask, _: case.run(ask, ['7', '12', '7']), 'image_ids'),
        (lambda case, ask, _: case.run(ask, '7'), 'image_ids'),
        (lambda case, ask, _: case.run(ask, []), 'image_ids'),
        (lambda case, ask, _: case.run(ask, case.items, n_best=4), 'n_best'),
        (lambda case, ask, _: case.run(ask, case.items, num_attributes=0), 'num_attributes'),
        (lambda case, ask, _: case.run(ask, case.items, attributes=None), 'attributes'),
    )
    metas = ({}, 'symbols'), (dict(symbols=world.SYMBOLS[1:]), 'vocabulary')

    def write(self, folder):
        words = dict(zip(self.items, (world.SYMBOLS[n : n + n % 4] for n in range(len(self.items)))))
        self.attributes = {image: [4 + world.SYMBOLS.index(word) for word in row] for image, row in words.items()}
        rows = {image: [[word, 0.9 - k / 10] for k, word in enumerate(row)] for image, row in words.items()}
        self.file = files.write_json(folder / 'attributes.json', rows) if self.reads_attributes else None
        return world.write_model(folder, 'model', self.model_config)

    def run(self, inferencer, items, store=None, **options):
        return super().run(inferencer, items, store, **dict(attributes=self.file) | options)

    @torch.no_grad()
    def expected(self, n_best):
        model, store = world.random_model(self.model_config).double(), RegionStore(self.regions)
        for image in self.items:
            inputs = dict(features=store[image].features[None].double(), boxes=store[image].boxes[None].double())
            if self.reads_attributes:
                inputs['attributes'] = torch.tensor([self.attributes[image]], dtype=torch.int64)
            (hypotheses,) = model.describe(inputs, beam=3)
            texts = [Vocabulary(world.SYMBOLS).decode(x.tokens) for x in hypotheses]
            captions = [dict(caption=text, score=x.score) for text, x in zip(texts, hypotheses)][:n_best]
            yield dict(captions[0], image_id=image, n_best=captions)


class CaptionsOfRegions(Captions):
    model_config, reads_attributes = world.SAN, False
    bad = (*Captions.bad[:-1], (lambda case, ask, _: case.run(ask, case.items, attributes='a.json'), 'attributes'))


class Questions(Regions):
    kind, model_config, tolerance = VQAInferencer, world.BAN, dict(rel=1e-6, abs=1e-7)  # scores are float32
    items = world.QUESTIONS
    of = staticmethod(lambda image: (image, 'dog'))
    # by hand: the numbers of the words, the unknown ones as padding; 7 words are read
    tokens = [[4, 5, 6], [4, 5, 8, 9, 10, 8, 7], [11, 12, 1, 10, 4, 9], [5, 6, 1, 7], [7]]
    unknown = [[], [], ['zebras'], ['a'], []]
    other = (dict(top_k=3), 'top_k'), (dict(items=items[:3]), 'questions'), (dict(store='touched'), 'images')
    bad = (
        *Regions.bad,
        *(
            (lambda case, ask, _, pairs=pairs: case.run(ask, pairs), 'questions')
            for pairs in (None, [], [('7',)], [(7, 'dog')], ['dog'])
        ),
        (lambda case, ask, folder: case.run(ask, folder / 'none.json'), 'none.json'),
        (lambda case, ask, _: case.run(ask, case.items, top_k=0), 'top_k'),
    )
    meta = dict(symbols=world.WORDS, answers=world.ANSWERS, tokens='ban', max_words=7)
    metas = (
        ({}, 'symbols, answers, tokens, max_words'),
        (dict(meta, symbols=world.WORDS[1:]), 'vocabulary'),
        (dict(meta, answers=world.ANSWERS[:-1]), 'num_answers'),
        (dict(meta, tokens='words'), 'tokens'),
        (dict(meta, max_words=0), 'max_words'),
    )

    def write(self, folder):
        return world.write_model(folder, 'model', self.model_config)

    @torch.no_grad()
    def expected(self, top_k):
        """By the model, without inferencer, tokenizer and preprocessor."""
        model = world.random_model(self.model_config).double()
        for index, ((image, text), tokens) in enumerate(zip(self.items, self.tokens)):
            question = torch.tensor([tokens + [1] * (7 - len(tokens))])
            values, order = model(dict(question=question, **self.image(image)))[0].sigmoid().sort(descending=True)
            pairs = [*zip((world.ANSWERS[number] for number in order), values.tolist())][:top_k]
            answers = [dict(answer=answer, score=score) for answer, score in pairs]
            about = dict(question_id=index, image_id=image, question=text, unknown=self.unknown[index])
            yield dict(answers[0], answers=answers, **about)

    def image(self, image):
        regions = RegionStore(self.regions)[image]
        return dict(features=regions.features[None].double(), boxes=regions.boxes[None].double())


class QuestionsByUnitary(Questions):
    model_config = world.UNITARY


class QuestionsByMCAN(Questions):
    model_config = world.MCAN


class QuestionsOfPictures(Questions):
    model_config, store = world.PICTURES, partial(world.write_pictures)
    bad = (
        Regions.bad[0],
        Regions.bad[1],
        (lambda case, ask, folder: case.run(ask, case.items, RegionStore(world.write_store(folder / 'a'))), 'inputs'),
        (
            lambda case, ask, folder: case.run(ask, case.items, case.store(folder / 'a', world.IDS[:2])),
            r'2 faults:\n.*image 5: .*\n.*image 40: ',
        ),
        (
            lambda case, ask, folder: case.run(ask, case.items, case.spoilt(folder)),
            r'2 faults:\n.*5\.png: 16×20.*\n.*40\.png',
        ),
    )

    def spoilt(self, folder):
        """Pictures of which one has another size, and one is damaged."""
        pictures = self.store(folder / 'a', world.IDS[:2])
        shutil.move(self.store(folder / 'b', world.IDS[2:3], (16, 20)) / '5.png', pictures)
        (pictures / '40.png').write_bytes(b'')
        return pictures

    def image(self, image):
        return dict(image=read_picture(self.regions / f'{image}.png')[None].double())


class Phrases(Regions):
    kind, tolerance = GroundingInferencer, dict(rel=1e-6, abs=1e-7)
    model_config, items = world.GROUNDER, world.PHRASES
    of = staticmethod(lambda image: (image, '[a dog]'))
    # by hand: the numbers of the words, the unknown ones as padding, and the place of the last word of each phrase
    tokens = [[6, 7, 5, 8, 9, 10, 8, 13], [11, 12, 1], [8, 7, 8, 7], [8, 7, 1, 9, 10, 8, 7]]
    last = [[1, 4, 7], [2], [1, 3], [3]]
    phrases = [['this dog', 'the colour', 'the cats'], ['zebras'], ['the dog', 'dog'], ["the dog 's colour"]]
    unknown = [[], ['zebras'], [], ["'s"]]
    other = (dict(top_k=3), 'top_k'), (dict(items=items[:3]), 'captions'), (dict(store='touched'), 'images')
    bad = (
        *Regions.bad,
        (lambda case, ask, _: case.run(ask, [('7', 'no phrase')]), 'caption 1'),
        (lambda case, ask, _: case.run(ask, [('7', '[a dog]'), ('7', '[a] b]')]), 'caption 2'),
        (lambda case, ask, _: case.run(ask, [('7', '[,] is')]), "caption 1.*'\\[,\\]'"),
        (lambda case, ask, _: case.run(ask, []), 'captions'),
        (lambda case, ask, _: case.run(ask, [('7', 3)]), 'captions'),
        (lambda case, ask, _: case.run(ask, case.items, top_k=0), 'top_k'),
    )
    metas = ({}, 'symbols'), (dict(symbols=world.WORDS[1:]), 'vocabulary')

    def write(self, folder):
        return world.write_model(folder, 'model', self.model_config)

    @torch.no_grad()
    def expected(self, top_k):
        """By the model, without inferencer, tokenizer and preprocessor."""
        model, store = world.random_model(self.model_config).double(), RegionStore(self.regions)
        for (image, text), tokens, last, phrases, unknown in zip(
            self.items, self.tokens, self.last, self.phrases, self.unknown, strict=True
        ):
            features, boxes = store[image].features[None].double(), store[image].boxes.tolist()
            logits = model(dict(caption=torch.tensor([tokens]), phrases=torch.tensor([last]), features=features))[0]
            found = []
            for phrase, row in zip(phrases, logits.tolist(), strict=True):
                order = sorted(range(len(row)), key=lambda j, row=row: -row[j])[:top_k]
                best = [dict(region=j, box=boxes[j], score=1 / (1 + np.exp(-row[j]))) for j in order]
                found.append(dict(best[0], phrase=phrase, regions=best))
            yield dict(image_id=image, caption=text, phrases=found, unknown=unknown)


def write(path, content):
    path.write_bytes(content)
    return path


def wrap(kind, **options):
    """A change of a config: its data set, whose files need not be here, in another one."""

    def change(cfg):
        dataset = cfg.test_dataloader.dataset
        inner = dict(datasets=[dataset] * 2) if kind == 'ConcatDataset' else dict(dataset=dataset)
        cfg.test_dataloader.dataset = dict(type=kind, **inner, **options)

    return change


def name_by_classes(cfg):
    """As in a config in pure Python."""
    cfg.model.type = EncoderDecoder
    for step in cfg.test_dataloader.dataset.pipeline:
        step.type = TRANSFORMS.get(step.type)


class Images(Case):
    """Inferencers that write files for image files."""

    same = (wrap('ConcatDataset'), wrap('RepeatDataset', times=2))

    bad = (
        (lambda case, ask, folder: ask(folder, folder / 'out'), 'inputs'),  # an empty folder
        (lambda case, ask, folder: ask([], folder / 'out'), 'inputs'),
        (lambda case, ask, folder: ask(None, folder / 'out'), 'inputs .*NoneType'),
        (lambda case, ask, folder: ask([np.zeros((4, 4, 3))], folder / 'out'), 'inputs .*ndarray'),
        (lambda case, ask, folder: ask([case.items[0]] * 2, folder / 'out'), r'inputs (?s:.*)\.png'),
        (lambda case, ask, folder: ask(['a.png', 'other/a.ppm'], folder / 'out'), r'a\.png .*other/a\.ppm'),
        (lambda case, ask, folder: ask([folder / 'out/vis/a.png'], folder / 'out'), r'out/vis/a\.png'),
        (lambda case, ask, folder: ask(case.items, write(folder / 'file', b'') / 'out'), 'cannot be written.*file/out'),
        (lambda case, ask, folder: ask(case.items, b'out'), 'out_dir .*bytes'),
        (lambda case, ask, folder: ask([folder / 'missing.png'], folder / 'out'), r'(?s)^\D*1 of 1.*missing\.png'),
    )

    def __init__(self, folder):
        self.folder = folder
        self.write(folder)
        self.items = self.write_images(folder)

    def write_images(self, folder):
        images = segmentation.write_images(folder)
        return sorted(path for path in images.iterdir() if path.suffix)  # neither hidden nor a folder

    def run(self, inferencer, out, items=None, **options):
        return inferencer(self.items if items is None else items, out, **options)


class Segmentation(Images):
    kind, foreign = SegmentationInferencer, (VIDEO, r'mmattn\.SST')
    ways = ({}, dict(batch_size=1, opacity=0.25)), (dict(fuse_conv_bn=True), dict(batch_size=3, opacity=1))
    same = (*Images.same, name_by_classes)
    meta = dict(classes=segmentation.CLASSES, palette=segmentation.PALETTE)
    bad = (
        *Images.bad,
        (lambda case, ask, folder: ask(case.items, folder / 'out', batch_size=0), 'batch_size .* 0'),
        (lambda case, ask, folder: ask(case.items, folder / 'out', batch_size=1.5), r'batch_size .* 1\.5'),
        (lambda case, ask, folder: ask(case.items, folder / 'out', opacity=1.5), r'opacity .* 1\.5'),
    )
    metas = (
        ({}, 'classes and palette'),
        (dict(meta, palette=None), 'classes and palette'),
        (dict(classes=meta['classes'][1:], palette=meta['palette'][1:]), '4 classes, .* 3'),
        (dict(meta, palette=[[0, 0, 300]] * 4), '0 to 255'),
    )

    def write(self, folder, cfg=None):
        (cfg or segmentation.config()).dump(folder / 'config.py')
        self.config, self.checkpoint = folder / 'config.py', folder / 'model.pth'
        self.model = segmentation.random_model(cfg)
        torch.save(dict(meta=dict(dataset_meta=self.meta), state_dict=self.model.state_dict()), self.checkpoint)

    def call(self, inferencer, out, items=None, **options):
        written = self.run(inferencer, out, items, **options)
        assert {*out.rglob('*.*')} == {*written, *(out / 'vis' / path.name for path in written)}
        found = []
        for path in written:
            with Image.open(path) as labels, Image.open(out / 'vis' / path.name) as overlay:
                assert labels.mode == 'P'
                palette = np.reshape(labels.getpalette(), (-1, 3))[: len(self.meta['palette'])].tolist()
                found.append(dict(name=path.stem, palette=palette, labels=np.array(labels), overlay=np.array(overlay)))
        return found

    def expected(self, batch_size, opacity):
        for path in self.items:
            image = mmcv.imread(path, channel_order='rgb')
            assert np.abs(image - segmentation.shown(path).astype(float)).mean() < 2  # decoders of JPEG differ
            labels = segmentation.argmax(self.model, image)
            overlay = (1 - opacity) * image + opacity * np.array(self.meta['palette'])[labels]
            yield dict(name=path.stem, palette=self.meta['palette'], labels=labels, overlay=overlay)


class SegmentationOfChannels(Segmentation):
    """Of 16 bits in four channels, whose axis may be the first; as a picture, three of them are shown."""

    ways = (({}, dict(batch_size=1, opacity=0)), ({}, dict(batch_size=2, opacity=0)))

    def write(self, folder, cfg=None):
        cfg = segmentation.config()
        cfg.model.data_preprocessor = dict(type='mmattn.ChannelsPreprocessor', mean=[1e4] * 4, std=[9e3] * 4)
        cfg.model.backbone.in_channels = 4
        cfg.test_dataloader.dataset.pipeline[0] = dict(type='mmattn.LoadChannels', channels=4)
        super().write(folder, cfg)

    def write_images(self, folder):
        self.pixels = {
            name: segmentation.blocks(height, 32, 4).astype(np.uint16) * 80 for name, height in (('a', 24), ('b', 2))
        }
        np.save(folder / 'a.npy', self.pixels['a'])
        np.save(folder / 'b.npy', np.moveaxis(self.pixels['b'], -1, 0))
        return [folder / 'a.npy', folder / 'b.npy']

    def expected(self, batch_size, opacity):
        for path in self.items:
            image = self.pixels[path.stem]
            labels = segmentation.argmax(self.model, image, 1e4, 9e3)
            yield dict(name=path.stem, palette=self.meta['palette'], labels=labels, overlay=as_picture(image))


class Detection(Images):
    foreign = SEGMENTOR, 'EncoderDecoder'
    ways = ({}, dict(pred_score_thr=0.4)), (dict(fuse_conv_bn=True), dict(pred_score_thr=0))
    meta = dict(classes=('red', 'white', 'plate'), palette=[[220, 60, 60], [120, 60, 220], [60, 180, 90]])
    bad = (*Images.bad, (lambda case, ask, folder: ask(case.items, folder / 'out', 2), 'pred_score_thr'))
    metas = ((None, 'classes'),)
    tolerance = dict(rel=1e-4, abs=1e-4)

    @property
    def kind(self):
        from mmattn.detection import DetectionInferencer

        return DetectionInferencer

    def write(self, folder):
        """The test pipeline drops images without objects."""
        load, resize, pack = PIPELINE
        labels = dict(type='LoadAnnotations', with_bbox=True), dict(type='FilterAnnotations', keep_empty=False)
        dataset = dict(type='CocoDataset', metainfo=self.meta, pipeline=[load, resize, *labels, pack])
        cfg = Config(dict(default_scope='mmdet', model=detector('faster'), test_dataloader=dict(dataset=dataset)))
        init_default_scope('mmdet')
        torch.manual_seed(0)
        self.model = MODELS.build(cfg.model).eval()
        for weight in self.model.parameters():
            torch.nn.init.normal_(weight, std=0.2)
        self.config, self.checkpoint = folder / 'config.py', folder / 'model.pth'
        torch.save(dict(meta=dict(dataset_meta=self.meta), state_dict=self.model.state_dict()), self.checkpoint)
        cfg.dump(self.config)
        self.model.cfg, self.model.dataset_meta = cfg.copy(), self.meta
        self.model.cfg.test_dataloader.dataset.pipeline = PIPELINE

    def call(self, inferencer, out, items=None, **options):
        written = self.run(inferencer, out, items, **options)
        stems = [path.stem for path in written]
        assert written == [out / f'pred/{stem}.json' for stem in stems]
        assert {*out.rglob('*.*')} == {*written, *(out / f'vis/{stem}.png' for stem in stems)}
        sizes = [Image.open(out / f'vis/{stem}.png').size for stem in stems]
        found = [json.loads(path.read_text()) for path in written]
        return [dict(name=stem, size=size, **boxes) for stem, size, boxes in zip(stems, sizes, found)]

    def expected(self, pred_score_thr):
        from mmdet.apis import inference_detector

        for path in self.items:
            boxes = inference_detector(self.model, str(path)).pred_instances
            kept = boxes[boxes.scores >= pred_score_thr]
            yield dict(
                name=path.stem,
                size=segmentation.shown(path).shape[1::-1],
                labels=kept.labels.tolist(),
                classes=[self.meta['classes'][label] for label in kept.labels],
                bboxes=kept.bboxes.tolist(),
                scores=kept.scores.tolist(),
            )


class Video(Case):
    kind = VOSInferencer
    length, late = 7, 5
    ways = tuple(({}, dict(max_frames=count)) for count in (3, length, None))
    parts = {}, dict(max_frames=3)
    order = False
    foreign = SEGMENTOR, 'EncoderDecoder'
    restart, untrained = dict(overwrite=True), True
    other = (
        (dict(max_frames=4), 'max_frames'),
        (dict(masks=slice(1)), 'masks_sha256'),
        (dict(references='nearest'), 'references'),
        (dict(video='other'), 'video, files_sha256'),
    )
    bad = (
        (lambda case, ask, folder: ask(folder / 'missing.mp4', case.masks, folder / 'out'), r'missing\.mp4'),
        (lambda case, ask, folder: ask(folder, case.masks, folder / 'out'), str),  # an empty folder
        (lambda case, ask, folder: ask(1.5, case.masks, folder / 'out'), 'video'),
        (lambda case, ask, folder: ask(case.frames, [], folder / 'out'), 'mask'),
        (lambda case, ask, folder: ask(case.frames, clips.squares(0, 1), folder / 'out'), 'masks'),
        (lambda case, ask, folder: ask(case.frames, case.masks, None), 'out_dir'),
        (lambda case, ask, folder: ask(case.frames, case.masks, write(folder / 'file', b'') / 'out'), 'file/out'),
        (lambda case, ask, folder: ask(case.frames, case.masks, folder / 'out', max_frames=1), 'max_frames'),
        (lambda case, ask, folder: ask(case.frames, case.masks, folder / 'out', opacity=1.5), 'opacity'),
        (lambda case, ask, folder: ask(case.frames, case.masks, folder / 'out', references='first'), 'references'),
    )

    def work(self, inferencer):
        return ClipSession, '_segment_part'

    def __init__(self, folder):
        """Objects 1 and 5 from the first frame, 9 from frame ``late`` on, whose mask has object 9 alone."""
        self.folder = folder
        self.config, self.checkpoint = write_small_sst(folder)
        frames = [clips.squares(p, *((1, 5) if p < self.late else (1, 5, 9))) for p in range(self.length)]
        clips.clip(folder, '', frames, masked=(0, self.late))
        late = folder / f'late/{self.late:05}.png'
        write_mask(late, clips.squares(self.late, 1, 5, 9) // 9 * 9)
        self.frames, self.masks = folder / 'JPEGImages', [folder / 'Annotations/00000.png', late]
        clips.clip(folder / 'other', '', frames[:-1], masked=())

    def call(self, inferencer, out, items=None, masks=slice(None), video='', **options):
        options = dict(overlay=False) | options
        inferencer.model.test_cfg.update(max_frames=3, sampling='sparse')  # arguments replace them
        written = inferencer(self.folder / video / 'JPEGImages', self.masks[masks], out, **options)
        assert sorted(path.name for path in out.iterdir()) == ['.lock', 'masks', 'run.json']
        return [dict(name=path.name, ids=read_mask(path), palette=read_palette(path)) for path in written]

    def expected(self, max_frames):
        """As the model in a test."""
        model = self.make().model
        model.test_cfg['max_frames'] = max_frames
        masks = model.predict([clips.packed(self.folder)])[0].pred_masks.data.numpy()
        for number, ids in enumerate(masks):
            yield dict(name=f'{number:05}.png', ids=ids, palette=PALETTE)

    def occupy(self, out):
        write_mask(out / 'masks/00000.png', clips.squares(0, 1))
        return out / 'masks/00000.png', r'run\.json'


INFERENCERS = dict(
    segmentation=Segmentation,
    detection=Detection,
    video=Video,
    translation=Translation,
    captioning=Captions,
    vqa=Questions,
    grounding=Phrases,
)
OTHER_MODELS = dict(
    channels=SegmentationOfChannels,
    captions_of_regions=CaptionsOfRegions,
    unitary=QuestionsByUnitary,
    mcan=QuestionsByMCAN,
    pictures=QuestionsOfPictures,
)
