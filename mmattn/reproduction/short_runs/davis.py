"""SST, grid and strided, on clips of DAVIS and a drawn scene, also with an empty reference mask; with pictures."""

import json
from pathlib import Path

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.model import BaseModel
from mmengine.registry import init_default_scope
from mmengine.runner import load_checkpoint
from mmengine.structures import PixelData
from PIL import Image

from mmattn.registry import DATASETS, MODELS
from mmattn.utils.files import write_text
from mmattn.video import PALETTE, SST, ClipSession, Frame, VOSMetric, read_mask
from mmattn.video.overlay import draw_overlay
from mmattn.video.similarity import region_similarity

from ..reproduce import checkpoint
from ..results import Result
from ..runs import Run
from .common import ShortRuns, sheet

REPEATED = 'the first mask, repeated'
SHOWN = (0.2, 0.5, 0.95)  # positions in a clip, relative to its length


def clips(run: Run) -> list:
    """Return the validation clips, as inputs of the model."""
    init_default_scope('mmengine')
    return [item['data_samples'] for item in DATASETS.build(Config.fromfile(run.config).val_dataloader.dataset)]


def evaluate(samples: list) -> dict[str, float]:
    """Return J&F, J and F over all clips, and J&F of each clip, in percent."""
    found: dict[str, float] = {}
    for name, some in [('', samples), *((f' of {sample.clip}', [sample]) for sample in samples)]:
        metric = VOSMetric()
        metric.process(None, [sample.to_dict() for sample in some])
        scores = metric.evaluate(len(some))
        found |= {f'J&F{name}': scores['JF'], **({} if name else {key: scores[key] for key in 'JF'})}
    return found


def trained(run: Run) -> SST:
    """Return the model of a finished run."""
    init_default_scope('mmengine')
    cfg = Config.fromfile(run.config)
    model = MODELS.build(cfg.model).eval()
    load_checkpoint(model, str(checkpoint(run.folder, cfg)), map_location='cpu', strict=True)
    return model


def predict(run: Run, blind: bool) -> list:
    """Return the validation clips with the predictions of a run; ``blind`` empties the reference masks."""
    model = trained(run)
    if blind:
        for part in filter(None, (model.expand_mask_project, model.appearance)):
            part.register_forward_pre_hook(lambda _, inputs: (*inputs[:-1], torch.zeros_like(inputs[-1])))
    return segment(model, clips(run))


def segment(model: BaseModel, samples: list) -> list:
    """Return clips with the predictions of a model."""
    return [model.test_step(pseudo_collate([dict(data_samples=sample)]))[0] for sample in samples]


def repeat(samples: list) -> list:
    """Return clips whose first mask is predicted for all frames."""
    for sample in samples:
        sample.pred_masks = PixelData(data=sample.given[0].expand(len(sample.frames), -1, -1))
    return samples


def examine(run: Run, result: Result, jobs: int) -> dict[str, Result]:
    """Return the scores of the repeated first mask, and of a run with and without its masks; store them."""
    path = run.folder / 'scores.json'
    if not path.exists():
        given = predict(run, blind=False)
        np.savez_compressed(
            run.folder / 'predictions.npz', **{sample.clip: sample.pred_masks.data.numpy() for sample in given}
        )
        rows = {
            REPEATED: repeat(clips(run)),
            run.method: given,
            f'{run.method}, empty reference mask': predict(run, blind=True),
        }
        write_text(path, json.dumps({name: evaluate(samples) for name, samples in rows.items()}))
    return {
        name: Result(metrics, None, None) if name == REPEATED else result._replace(metrics=metrics)
        for name, metrics in json.loads(path.read_text(encoding='utf-8')).items()
    }


def ball(length: int = 16, size: tuple[int, int] = (206, 366)) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draw a striped ball that rolls, grows and passes behind a post; return the frames, uint8 BGR, and its masks."""
    clip = []
    y, x = np.mgrid[: size[0], : size[1]]
    meadow = np.random.default_rng(0).normal(0, 12, size) + 25 * np.sin(x / 23) * np.cos(y / 17)
    for time in np.linspace(0, 1, length):
        dy, dx = y - 150 + 60 * np.sin(np.pi * time), x - 50 - 250 * time
        turned = np.cos(5 * time) * dx + np.sin(5 * time) * dy
        mask = np.hypot(dy, dx) < 22 + 10 * time
        frame = np.stack([70 + meadow, 130 + meadow - y / 6, 90 + meadow], -1)
        frame[mask] = np.where(np.sin(turned / 4) > 0, 220, 60)[mask, None] * [0.3, 0.5, 1.0]
        post = abs(x - 190) < 7
        frame[post] = 150, 150, 155
        clip.append((cv2.GaussianBlur(frame, (3, 3), 0).clip(0, 255).astype(np.uint8), (mask & ~post).astype(np.uint8)))
    return clip


def draw_scene(runs: list[Run], path: Path) -> None:
    """Draw the predictions of some runs on the scene of the ball, and print J."""
    clip = ball()
    rows = [[(frame, mask) for frame, mask in clip]]
    for run in runs:
        frames = (Frame(i, frame, mask if i == 0 else None) for i, (frame, mask) in enumerate(clip))
        rows.append([(frame.image, ids) for frame, ids in ClipSession(trained(run)).segment(frames)])
    names = ['truth', *(run.method for run in runs)]
    shown = [round(share * (len(clip) - 1)) for share in (0, *SHOWN)]
    sheet([[overlay(*row[i]) for row in rows] for i in shown], names, path)
    for name, row in zip(names[1:], rows[1:]):
        found = [100 * region_similarity(ids > 0, mask > 0) for (_, ids), (_, mask) in zip(row[1:], clip[1:])]
        print(f'{name}, the drawn ball: J {np.mean(found):.1f}')


def draw(runs: list[Run], folder: Path) -> None:
    """Write overlays.jpg, frames with ground truth and predictions; predictions.png, without frames; and scene.jpg."""
    overlays, predictions = [], []
    for sample in clips(runs[0]):
        found = [np.load(run.folder / 'predictions.npz', allow_pickle=False)[sample.clip] for run in runs]
        for position in (round(share * (len(sample.frames) - 1)) for share in SHOWN):
            frame = sample.frames[position]
            truth = read_mask(sample.mask_paths[position], sample.single_object)
            overlays.append([overlay(frame, ids) for ids in (truth, *(ids[position] for ids in found))])
            predictions.append([Image.fromarray(PALETTE[ids[position]]) for ids in found])
    names = [run.method for run in runs]
    sheet(overlays, ['truth', *names], folder / 'overlays.jpg')
    sheet(predictions, names, folder / 'predictions.png')
    draw_scene(runs, folder / 'scene.jpg')


def overlay(frame: np.ndarray, ids: np.ndarray) -> Image.Image:
    """Draw masks over a frame, uint8 BGR."""
    return Image.fromarray(np.ascontiguousarray(draw_overlay(frame, ids, 0.5)[..., ::-1]))


RUNS = ShortRuns(
    'davis_240p',
    {
        'SST, grid': 'sst/sst-grid_r18-d8-half_1xb4-400_davis-240p.py',
        'SST, strided': 'sst/sst-strided_r18-d8-half_1xb4-400_davis-240p.py',
    },
    REPEATED,
    draw,
    examine,
)
