"""A page of pictures: captions, and the regions that the model looked at for each word."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from mmattn.language.inferencer import record_attention
from mmattn.language.regions.image_regions import Regions

SIDE = 512  # pixels of a picture on the page
STRONGEST = 3  # regions per word
PAGE = Path(__file__).with_name('caption_page.html')
ONE_MODEL = """A word and the region with its largest attention weight have the same colour; a region that several words
share has that of the last."""
SEVERAL_MODELS = """A word has the colour of the regions with its largest attention weights. A caption without
colours is by a model that reads no regions."""
# Word k has a colour. While the pointer is on the word, only its regions are visible, the weaker regions fainter.
WORD = """\
  .w{k} {{ --colour: hsl({hue} 85% 50%); }}
  figure:has(.caption .w{k}:is(:hover, :focus)) rect:not(.w{k}) {{ visibility: hidden; }}
  figure:has(.caption .w{k}:is(:hover, :focus)) rect.w{k} {{ visibility: visible; opacity: var(--share); }}"""


def region_layers(model: Any) -> list[tuple[Any, nn.Module]]:
    """Find the models that read regions, and the attention to regions in their last decoder layers.

    With entangled attention, this is the sub-layer whose output is v of Eq. 2.10, or g_v if the mode has no v. Layers
    without ``attention_weights``, such as ``stack='Torch'``, are a ValueError.
    """
    layers = []
    for member in getattr(model, 'members', [model]):
        if member.num_features is None:
            continue
        stack = getattr(member.decoder, 'layers', None)
        layer: Any = None if stack is None else stack[-1].cross_attention
        sublayers = getattr(layer, 'sublayers', None)
        if sublayers is not None:
            layer = sublayers['visual' if 'visual' in sublayers else 'visual_guide'].attention
        if not getattr(layer, 'attention_kinds', ()):
            raise ValueError(f'the attention of this {type(member).__name__} to the regions has no attention_weights')
        layers.append((member, layer))
    if not layers:
        raise ValueError(f'this {type(model).__name__} reads no regions')
    return layers


@torch.no_grad()
def region_attention(model: Any, inputs: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """Average each word's attention to the regions over heads and models: ``(L, N)`` on the CPU. Each row sums to 1.

    ``model`` is a :class:`Captioner` or a :class:`CaptionEnsemble` in evaluation mode. ``inputs`` are those of
    :meth:`Captioner.forward` for one image, and ``tokens`` the caption with ``</s>``, int64 ``(L)``.
    """
    weights = []
    for member, layer in region_layers(model):
        with record_attention({'regions': layer}) as rows:
            member.decode(*member.encode(inputs), tokens[None])
        weights.append(rows[0][1]['content'].mean(0))
    return torch.stack(weights).mean(0)


def caption_figure(
    picture: Image.Image,
    regions: Regions,
    words: Sequence[str],
    weights: Tensor,
    name: str = '',
    references: Sequence[str] = (),
) -> str:
    """Build the figure of an image for :func:`caption_page`: the picture with boxes, and the caption in colours.

    ``picture`` may have any mode, and be smaller than the image of the N ``regions``. ``weights``, ``(T, N)``, is the
    attention of the T ``words``. ``name`` and ``references``, captions by people, are printed below the picture.
    """
    rects, spans = _words(regions, words, weights)
    return _figure(picture, regions, rects, f'<p class="caption">{spans}</p>', name, references)


def comparison_figure(
    picture: Image.Image,
    regions: Regions,
    captions: Mapping[str, tuple[Sequence[str], Tensor | None]],
    name: str = '',
    references: Sequence[str] = (),
) -> str:
    """Build the figure of an image with the captions of several models. The boxes of a word appear at its selection.

    ``captions`` maps the name of a model to its words and their attention weights, ``(T, N)``, or None for a model that
    reads no regions. The other arguments are as in :func:`caption_figure`.
    """
    rects, lines, count = '', '', 0
    for model, (words, weights) in captions.items():
        if weights is None:
            spans = escape(' '.join(words))
        else:
            of_model, spans = _words(regions, words, weights, count, ' further')
            rects += of_model
            count += len(words)
        lines += f'<p class="caption"><small>{escape(model)}</small> {spans}</p>'
    return _figure(picture, regions, rects, lines, name, references)


def _words(regions: Regions, words: Sequence[str], weights: Tensor, start: int = 0, kind: str = '') -> tuple[str, str]:
    """Build the boxes and the text of a caption whose words have the numbers ``start``, ``start`` + 1, …"""
    if weights.shape != (len(words), len(regions.boxes)):
        expected = len(words), len(regions.boxes)
        raise ValueError(f'weights must be {expected}, words and regions; got {(*weights.shape,)}')
    strongest, order = torch.sort(weights, dim=1, descending=True, stable=True)
    rects, spans = [], []
    for k, (word, shares, indices) in enumerate(zip(words, strongest.tolist(), order.tolist()), start):
        values = shares[:STRONGEST]
        for rank, (value, index) in enumerate(zip(values, indices)):
            left, top, right, bottom = regions.boxes[index].tolist()
            rects.append(
                f'<rect class="w{k}{" further" if rank else kind}" x="{left:.1f}" y="{top:.1f}" '
                f'width="{right - left:.1f}" height="{bottom - top:.1f}" style="--share: {value / values[0]:.2f}"/>'
            )
        title = ', '.join(f'{value:.2f}' for value in values)
        spans.append(f'<span class="w{k}" tabindex="0" title="{title}">{escape(word)}</span>')
    return ''.join(rects), ' '.join(spans)


def _figure(
    picture: Image.Image, regions: Regions, rects: str, captions: str, name: str, references: Sequence[str]
) -> str:
    width, height = regions.size
    listed = ''.join(f'<li>{escape(text)}</li>' for text in references)
    return (
        f'<figure>\n<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(name)}">\n'
        f'<image href="{_data_url(picture)}" width="{width}" height="{height}"/>\n'
        f'{rects}\n</svg>\n<figcaption>{captions}'
        f'<small>{escape(name)}</small>{f"<ul>{listed}</ul>" if listed else ""}</figcaption>\n</figure>'
    )


def caption_page(figures: Sequence[str], title: str, num_words: int, shown: str = ONE_MODEL) -> str:
    """Build a self-contained HTML page without scripts, for figures with at most ``num_words`` words.

    ``shown`` says what the figures show: ``SEVERAL_MODELS`` for those of :func:`comparison_figure`.
    """
    # Multiples of the golden angle: the colours of neighbours, and of any few words, are far apart.
    words = '\n'.join(WORD.format(k=k, hue=round(137.508 * k) % 360) for k in range(num_words))
    page = PAGE.read_text(encoding='utf-8')
    return page.format(title=escape(title), words=words, figures='\n'.join(figures), strongest=STRONGEST, shown=shown)


def _data_url(picture: Image.Image) -> str:
    picture = picture.convert('RGB')
    picture.thumbnail((SIDE, SIDE))
    file = BytesIO()
    picture.save(file, 'JPEG', quality=85)
    return f'data:image/jpeg;base64,{b64encode(file.getvalue()).decode()}'
