"""The names of a run: its key in results.json, after the shipped config, and its folder, after what really runs."""

import re
from pathlib import Path

from mmengine.config import Config

from .protocol import Protocol, is_own, shipped, small_network
from .task import SENTENCE_TASKS, find_task, input_size, length

PARTS = re.compile(r'(?P<method>[^_]+)(?P<network>(?:_[^_]+)*)_\d+xb\d+(?P<stage>-scst)?[^_]*_(?P<data>.+)')
FIRST_LINE = '# In results.json: '


def results_key(path: Path) -> str:
    """Return the key in results.json of a config in a work dir; earlier versions named the file so."""
    first = path.read_text(encoding='utf-8').partition('\n')[0]
    return first.removeprefix(FIRST_LINE) if first.startswith(FIRST_LINE) else path.stem


def run_name(config: str, cfg: Config, protocol: Protocol, data: Config | None) -> str:
    """Name a run like a shipped config: its method, network, batch, length, data set and size of the input.

    The name of the shipped config remains where the protocol is the paper's.

    Args:
        config (str): the shipped config, relative to configs/.
        cfg (Config): what runs in its place.
        protocol (Protocol): the changes.
        data (Config, optional): the protocol's data set.

    Example:
        >>> from reproduction.plan import plan
        >>> from reproduction.protocol import read_data
        >>> from reproduction.tables import read_tables
        >>> protocol, data = Protocol('camvid', 240, 0.5, small=True), read_data('camvid', None)
        >>> (method,) = plan(read_tables()['3.2'], protocol, data, ['NL'])
        >>> run_name(method.rows[0].configs[0], method.configs[0], protocol, data)
        'nl_r18-d8-half_1xb8-240_camvid-180x180'
    """
    stem, of_paper = Path(config).stem, shipped(config)
    is_papers_data = data is None or is_own(of_paper, data)
    task = find_task(cfg)
    size = None if task in SENTENCE_TASKS or 'mmdet' in (task, of_paper.default_scope) else input_size(cfg)
    has_size = size is not None and (protocol.scale != 1 or not is_papers_data)
    changed = protocol.small or protocol.backbone or length(cfg) != length(of_paper) or has_size or not is_papers_data
    if protocol.tiny or not changed:
        return stem
    parts = re.fullmatch(PARTS, stem)
    assert parts is not None, stem
    network, data_name = parts['network'], parts['data']
    if protocol.backbone is not None:
        other = Path(protocol.backbone).stem
    else:
        other = small_network(of_paper).model if protocol.small else ''
    if other:
        backbone = re.search(r'r\d+\S*?(?=_|$)|[^_]+$', other)[0] if protocol.backbone is None else other  # type: ignore[index]
        network = re.sub(r'_(r\d+(-d8)?|big|base|iwslt|$)', f'_{backbone}', network, count=1) or f'_{backbone}'
    steps, unit = length(cfg)
    count = f'{steps}e' if unit == 'epoch' else f'{steps // 1000}k' if steps % 1000 == 0 else f'{steps}'
    batch = cfg.train_dataloader.batch_sampler.max_tokens if task == 'text' else cfg.train_dataloader.batch_size
    if not is_papers_data:
        data_name = str(protocol.data_name).replace('_', '-')
    if has_size:
        data_name = re.sub(r'-\d+x\d+$', '', data_name) + '-{}x{}'.format(*size)  # type: ignore[misc]
    return f'{parts["method"]}{network}_1xb{batch}{parts["stage"] or ""}-{count}_{data_name}'
