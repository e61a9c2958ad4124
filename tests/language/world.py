"""One small world for all tasks of language: images with regions and pictures, texts about them, models for both."""

import string
from types import SimpleNamespace

import numpy as np
import torch
from mmengine.config import Config
from PIL import Image

import mmattn.engine  # noqa: F401
from mmattn.language import Regions, RegionWriter
from mmattn.language.vqa import Question, write_questions
from mmattn.registry import MODELS

from .files import write_json

IDS = ['7', '12', '5', '40', '41', '3', '8']
SIZE = (60, 40)
FEATURES = 6

# Captions: the words in the order of their vocabulary.
SYMBOLS = [f'word{number:02}' for number in range(20)]

# Visual questions and phrases.
WORDS = ['what', 'is', 'this', 'dog', 'the', 'colour', 'of', 'how', 'many', 'cats']
ANSWERS = ['yes', 'no', 'dog', 'two', 'red', 'on the table']
QUESTIONS = [
    ('7', 'What is this?'),
    ('7', 'What is the colour of the dog?'),
    ('12', 'How many zebras, of what colour?'),
    ('5', 'Is this a dog?'),
    ('40', 'dog'),
]
PHRASES = [
    ('7', '[This dog] is [the colour], of [the cats]'),
    ('12', 'how many [zebras?]'),
    ('7', '[the dog], the [dog]'),
    ('40', "[the dog's colour] of the dog"),
]

# Translation: merged pieces of a source text with these words; the letters are for all other words.
LETTERS = string.ascii_lowercase
CODES = ['#version: 0.2', 't h', 'th e</w>', 'd o', 'do g</w>', 'm a', 'ma n</w>']
PIECES = [*LETTERS, *(f'{letter}@@' for letter in LETTERS), 'the', 'th@@', 'dog', 'do@@', 'man', 'ma@@', '.', ',', "'"]
LINES = [
    'The dog.',
    '',
    'A man and the dog, they run.',
    'Dogs',
    'the man sees a house with a man',
    '   ',
    "The man's dog barks.",
    'Grüße',  # letters that the vocabulary does not have
    'a b c d e f g',
    'a dog',
]

LAYERS = dict(num_heads=2, embed_dim=16, feedforward_dim=24)
CAPTIONER = dict(LAYERS, vocab_size=4 + len(SYMBOLS), num_features=FEATURES, num_layers=2)
NG_SAN = dict(type='mmattn.RegionAttention', query_norm='instance', geometry='query_dependent', geometry_dim=4)
SAN = dict(CAPTIONER, type='mmattn.SANCaptioner', encoder_attention=NG_SAN, test_cfg=dict(max_length=7))
ETA = dict(CAPTIONER, type='mmattn.ETACaptioner', test_cfg=dict(beam=3, max_length=7))
ANSWERER = dict(vocab_size=4 + len(WORDS), num_answers=len(ANSWERS), num_features=FEATURES)
GRU = dict(type='mmattn.QuestionGRU', word_dim=8, embed_dim=12)
BAN = dict(
    ANSWERER,
    type='mmattn.VQAModel',
    question_encoder=GRU,
    head=dict(type='mmattn.BANHead', num_glimpses=2, embed_dim=12),
)
UNITARY = dict(BAN, head=dict(type='mmattn.UnitaryHead', embed_dim=12))
CONCAT = dict(BAN, head=dict(type='mmattn.ConcatHead'))
PICTURES = dict(BAN, image_encoder=dict(type='mmattn.ConvImageEncoder', channels=(4, 6)))
MCAN = ANSWERER | dict(LAYERS, type='mmattn.MCAN', word_dim=8, num_layers=1, fused_dim=12)
GROUNDER = dict(
    type='mmattn.PhraseGrounder',
    vocab_size=4 + len(WORDS),
    num_features=FEATURES,
    embed_dim=12,
    question_encoder=dict(type='mmattn.QuestionGRU', word_dim=8),
)
BILATERAL = dict(type='mmattn.BilateralMultiheadAttention', window_size=5)
TRANSLATOR = dict(
    type='mmattn.TranslationTransformer',
    vocab_size=4 + len(PIECES),
    size='tiny',
    encoder_attention=BILATERAL,
    decoder_attention=BILATERAL,
    test_cfg=dict(beam=3, max_length=(1.0, 4)),
)
CORPUS = dict(source='en', target='de', lowercase=True, moses=dict(escape=True), symbols=PIECES, codes=CODES)


def random_model(config, seed=0):
    """A model in evaluation mode whose outputs depend on its inputs; its sentences differ in length."""
    torch.manual_seed(seed + 3 * ('Captioner' in config['type']))
    model = MODELS.build(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # matrices, and the scales of weight norm
            if (parameter.dim() > 1 and 'embedding' not in name) or name.endswith('original0'):
                parameter.mul_(2)
        if 'Captioner' in config['type']:  # a caption would repeat a word
            model.embedding.weight.mul_(5)
            model.decoder.layers[-1].feedforward_norm.weight.normal_(std=2.0)
        elif 'Translation' in config['type']:  # the most probable token would be the last one
            model.decoder.layers[-1].feedforward_norm.weight.normal_(std=1.0)
            model.embedding.weight[2] *= 1.5  # ends
    return model


def write_model(folder, name, config, seed=0, **meta):
    """Write the config of such a model and its checkpoint, as mmengine does; return their paths."""
    if 'Captioner' in config['type']:
        meta = dict(symbols=SYMBOLS, max_words=16) | meta
    elif 'Translation' in config['type']:
        meta = CORPUS | meta
    else:
        meta = dict(symbols=WORDS, answers=ANSWERS, tokens='ban', max_words=7) | meta
    path, checkpoint = folder / f'{name}.py', folder / f'{name}.pth'
    Config(dict(model=config)).dump(str(path))
    content = dict(meta=dict(dataset_meta=meta, epoch=1), state_dict=random_model(config, seed).state_dict())
    torch.save(content, checkpoint)
    return SimpleNamespace(config=path, checkpoint=checkpoint)


def write_store(folder, ids=IDS, width=FEATURES, seed=0):
    """Write regions of some images, three to six each."""
    generator = torch.Generator().manual_seed(seed)
    with RegionWriter(folder) as writer:
        for number, image_id in enumerate(ids):
            n = 3 + number % 4
            corner = torch.rand(n, 2, generator=generator) * 25
            sides = 2 + torch.rand(n, 2, generator=generator) * 12
            features = torch.randn(n, width, generator=generator) * 2
            writer.write(image_id, Regions(features, torch.cat([corner, corner + sides], 1), SIZE))
    return folder


def write_pictures(folder, ids=IDS, size=(16, 16)):
    """Write pictures of noise, of this width and height."""
    folder.mkdir()
    for number, image_id in enumerate(ids):
        noise = np.random.default_rng(number).integers(0, 255, (*size[::-1], 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f'{image_id}.png')
    return folder


TRAINED = dict(san=SAN, eta=ETA, ban=BAN, mcan=MCAN, reader=PICTURES, translator=TRANSLATOR, grounder=GROUNDER)


def write_world(folder):
    """Write regions and pictures of images, texts about them, and trained models; return their paths."""
    write_store(folder / 'regions')
    write_pictures(folder / 'pictures')
    write_pictures(folder / 'photos', size=SIZE)
    for image_id in IDS[1::2]:  # named as those of COCO
        (folder / f'photos/{image_id}.png').rename(folder / f'photos/COCO_val2014_{int(image_id):012d}.png')
    images = [
        dict(
            cocoid=int(image_id),
            split='test' if number < 4 else 'val',
            sentences=[dict(raw=f'Word{number} & word{k}.', tokens=[SYMBOLS[number], SYMBOLS[k]]) for k in range(20)],
        )
        for number, image_id in enumerate(IDS)
    ]
    write_json(folder / 'dataset.json', dict(images=images))
    attributes = {image_id: [[SYMBOLS[n + k], 0.9 - k / 10] for k in range(n % 4)] for n, image_id in enumerate(IDS)}
    write_json(folder / 'attributes.json', attributes)
    write_questions(folder / 'questions.json', [Question(90 + n, *pair) for n, pair in enumerate(QUESTIONS)])
    phrases = ''.join(f'{image}\t{text}\n' for image, text in PHRASES)
    (folder / 'captions.txt').write_text(phrases, encoding='utf-8')
    (folder / 'lines.en').write_bytes('\r\n'.join(LINES).encode())
    models = {name: write_model(folder, name, config) for name, config in TRAINED.items()}
    return SimpleNamespace(
        folder=folder,
        store=folder / 'regions',
        pictures=folder / 'pictures',
        photos=folder / 'photos',
        attributes=folder / 'attributes.json',
        annotations=folder / 'dataset.json',
        questions=folder / 'questions.json',
        **models,
    )


def stored(sizes, width=3, boxes=True, **more):
    """What stands in for a region store: random regions of each image, as many as ``sizes`` says."""
    found = {}
    for seed, (name, count) in enumerate(sizes.items()):
        generator = torch.Generator().manual_seed(seed)
        corner = torch.rand(count, 2, generator=generator)
        features = torch.rand(count, width, generator=generator)
        found[name] = Regions(features, torch.cat([corner, corner + 1], 1) if boxes else None, (640, 480), **more)
    return found


def random_regions(count, generator):
    """Features, boxes and the size of an image, in float64."""
    corner, sides = (torch.rand(count, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    boxes = torch.cat([50 * corner, 50 * corner + 2 + 40 * sides], 1)
    features = torch.randn(count, FEATURES, generator=generator, dtype=torch.float64)
    return dict(features=features, boxes=boxes, sizes=torch.tensor([100, 92]))


def batch(model, samples):
    """Samples of different sizes as a model gets them."""
    inputs = {name: [sample[name] for sample in samples] for name in samples[0]}
    return model.data_preprocessor(dict(inputs=inputs))['inputs']


def in_double(inferencer, monkeypatch):
    """Let model and inputs be float64; stores and pictures have float32."""
    inferencer.model.double()
    collated = inferencer._collated

    def double(samples):
        return {name: x.double() if x.is_floating_point() else x for name, x in collated(samples).items()}

    monkeypatch.setattr(inferencer, '_collated', double)
    return inferencer
