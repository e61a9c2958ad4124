"""Split the training clips of YouTube-VOS, so that a part of them can be tested without the server.

    python tools/dataset_converters/youtube_vos_split.py data/youtube_vos_2018/train --train train_joakim.txt

The list has one clip per line. The other clips are the other part; give ``--val`` for a list of these, or both lists.
A-GAME published one: https://github.com/joakimjohnander/agame-vos, folder ``ytvos_trainval_split/ImageSets``.
Output, beside the folder's ``meta.json``, for ``ann_file`` of ``mmattn.YouTubeVOSDataset``::

    FOLDER/meta_train.json, FOLDER/meta_val.json    the entries of the clips in meta.json

Args:
    train (LIST): list of the clips for training
    val (LIST): list of the clips for validation
"""

import json
from pathlib import Path

from mmengine.fileio import load

from common.conversion import Overwrite, converter, write_texts
from mmattn.utils.command import run
from mmattn.utils.faults import Faults, FaultsError, reading


def read_list(path: Path, videos: dict) -> list[str]:
    """Read the names of clips in a list, in the order of ``videos``."""
    with reading(path, 'not a list of clips'):
        names = path.read_text(encoding='utf-8-sig').split()
    if unknown := sorted({*names} - {*videos}):
        raise FaultsError(path, f'{len(unknown)} clips are not in meta.json, such as {unknown[0]}')
    return [name for name in videos if name in {*names}]


@converter
def main(folder: Path, *, train: Path | None = None, val: Path | None = None, overwrite: Overwrite = False) -> None:
    meta = folder / 'meta.json'
    with reading(meta, 'must hold videos.<clip>'):
        videos = {**load(meta)['videos']}
    lists = {part: read_list(path, videos) for part, path in (('train', train), ('val', val)) if path is not None}
    if not lists:
        raise FaultsError('give a list of clips by --train, --val or both')
    for part, other in (('train', 'val'), ('val', 'train')):
        lists.setdefault(part, [name for name in videos if name not in lists.get(other, ())])
        if not lists[part]:
            raise FaultsError(meta, f'no clip is left for {part}')
    if common := sorted({*lists['train']} & {*lists['val']}):
        raise FaultsError(val, f'{len(common)} clips are also in {train}, such as {common[0]}')
    paths = {part: folder / f'meta_{part}.json' for part in ('train', 'val')}
    faults = Faults()
    for path in paths.values():
        if path.exists() and not overwrite:
            faults.add(path, 'already exists; --overwrite replaces it')
    faults.check()
    write_texts(
        {path: json.dumps(dict(videos={name: videos[name] for name in lists[part]})) for part, path in paths.items()}
    )
    print(', '.join(f'{len(lists[part]):,} clips in {path}' for part, path in paths.items()))


if __name__ == '__main__':
    run(main)
