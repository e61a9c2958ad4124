"""A published split of YouTube-VOS' training clips: each clip in one part, read and scored with its masks."""

import pytest

from mmattn.video import YouTubeVOSDataset

from ..support.releases import youtube_vos
from .conftest import scripts

(youtube_vos_split,) = scripts('youtube_vos_split')


@pytest.fixture
def folder(tmp_path):
    youtube_vos(tmp_path, {name: {1: ('cat', 1), 4: ('yak', 0)} for name in 'abcd'}, dict.fromkeys('abcd', 3))
    for name, clips in dict(one='d\na\n', other='b').items():
        (tmp_path / f'{name}.txt').write_text(clips)
    return tmp_path


@pytest.mark.parametrize(
    ('options', 'train', 'val'),
    [('--train one', 'ad', 'bc'), ('--val one', 'bc', 'ad'), ('--train one --val other', 'ad', 'b')],
)
def test_both_parts_are_read(options, train, val, folder, command):
    arguments = [folder / f'{word}.txt' if word[0] != '-' else word for word in options.split()]
    code, said, _ = command(youtube_vos_split, folder, *arguments, out=None)
    assert code == 0
    assert [text.split()[0] for text in said[0].split(', ')] == [str(len(train)), str(len(val))]
    options = dict(data_root=str(folder), check_files=False)
    whole = {item['clip']: item for item in YouTubeVOSDataset(**options)}
    for part, names in (('train', train), ('val', val)):
        items = [*YouTubeVOSDataset(f'meta_{part}.json', **options)]
        assert [item['clip'] for item in items] == [*names]
        for item in items:
            assert {**item, 'sample_idx': 0} == {**whole[item['clip']], 'sample_idx': 0}
