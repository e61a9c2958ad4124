"""Every metric with a few samples; scripts of several processes import it, too."""

import numpy as np
from mmengine.evaluator import Evaluator

from mmattn.language.captioning import CaptionMetric
from mmattn.language.grounding import PhraseRecall
from mmattn.language.translation import BLEU
from mmattn.language.vqa import VQAAccuracy
from mmattn.segmentation import ForegroundIoUMetric
from mmattn.segmentation.face_parsing import FaceParsingMetric
from mmattn.video import VOSMetric

from ..language.captioning import test_caption_metric as captions
from ..language.grounding import test_phrase_recall as phrases
from ..language.translation import test_bleu as translations
from ..language.vqa import test_answers as answers
from ..segmentation import test_face_parsing_metric as faces
from ..video import clips
from ..video import test_metric as videos

PROCESSES = 3


class Case:
    """Its class, the metainfo of a data set, samples, and options; of ``unlike``, figures or files differ."""

    unique = False  # whether samples have ids, so that any division into processes is possible

    def __init__(self, kind, meta, samples, options=None, unlike=None):
        self.kind, self.meta, self.samples, self.options, self.unlike = kind, meta, samples, options or {}, unlike

    def evaluate(self, samples=None, size=None, **options):
        samples = self.samples if samples is None else samples
        evaluator = Evaluator(self.kind(**self.options | options))
        evaluator.dataset_meta = self.meta
        for start in range(0, len(samples), 2):
            evaluator.process(samples[start : start + 2])
        return evaluator.evaluate(len(self.samples) if size is None else size)

    def part(self, rank):
        """The samples of a process as mmengine's sampler gives them: the last ones may be repeated ones."""
        count = -(-len(self.samples) // PROCESSES)
        return [self.samples[i % len(self.samples)] for i in range(rank, count * PROCESSES, PROCESSES)]


class Unique(Case):
    unique = True

    def part(self, rank):
        """In no order, as many as it happens, one of them in two processes; the last process has none."""
        return [self.samples[2:0:-1], [self.samples[0], *self.samples[2:]], []][rank]


def metrics(folder):
    """The cases by name; clips are in a folder."""
    lengths = dict(zip('abcde', (4, 6, 5, 7, 8)))
    objects = {name: {1: ('cat', 0), **({6: ('yak', 1)} if i % 2 else {})} for i, name in enumerate('abcde')}
    if not folder.exists():
        clips.youtube_vos(folder, objects, lengths)
    predicted = {
        name: [clips.squares(p * i // 3, 1, 6) for p in range(lengths[name])] for i, name in enumerate('abcde')
    }
    followed = [
        videos.with_prediction(item['data_samples'], predicted)
        for item in videos.YouTubeVOSDataset(data_root=str(folder), pipeline=clips.TEST)
    ]
    maps = [faces.sample(*pair, f'{i}.jpg') for i, pair in enumerate(faces.images(5))]
    ones = [
        dict(sample, gt_sem_seg=dict(data=sample['gt_sem_seg']['data'].long()))
        for sample in (faces.sample(*pair, f'{i}.jpg') for i, pair in enumerate(faces.images(5, seed=1)))
    ]
    classes = dict(classes=faces.CLASSES)
    return dict(
        face_parsing=Case(FaceParsingMetric, classes, maps, faces.HELEN, dict(overall_mode='union')),
        foreground=Case(
            ForegroundIoUMetric,
            dict(classes=faces.CLASSES),
            ones,
            dict(background='background'),
            dict(background='hair'),
        ),
        video=Case(VOSMetric, dict(seen_categories=['cat']), followed, {}, dict(skip_last=False)),
        translation=Unique(BLEU, translations.META, translations.SAMPLES, {}, dict(detokenized=False)),
        captions=Unique(
            CaptionMetric, captions.META, captions.SAMPLES, dict(use_meteor=False, tokenizer='simple'), None
        ),
        answers=Unique(VQAAccuracy, dict(answers=answers.ANSWERS), answers.SAMPLES, {}, dict(question_types=False)),
        phrases=Unique(PhraseRecall, {}, phrases.samples(9), {}, None),
    )


def plain(figures):
    """Figures that JSON keeps."""
    return {name: None if np.isnan(x) else float(x) for name, x in figures.items()}
