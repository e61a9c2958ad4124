"""Prints what results.jsonl says: failures first, then times. ``python summary.py RESULTS``."""

import json
import sys
from itertools import groupby
from pathlib import Path

MOST_FAILURES = 45

lines = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding='utf-8').splitlines()]
failures = [line for line in lines if line.get('ok') is False or 'error' in line]


def short(line: dict) -> str:
    text = {key: value for key, value in line.items() if key not in ('trace', 'ok')}
    return json.dumps(text, ensure_ascii=False)[:230]


print(f'== {len(lines)} lines, {len(failures)} failures')
for line in failures[:MOST_FAILURES]:
    print('  ', short(line))
for part, *keys in (('layers', 'comparison', 'mode'), ('ops', 'workload', 'dtype')):
    print(f'== {part}, forward + backward: ms, MiB (launches)')
    rows = [x for x in lines if x['part'] == part and x.get('pass') == 'forward + backward' and 'ms' in x]
    for group, listed in groupby(rows, key=lambda row: [row[key] for key in keys]):
        cells = [
            f'{x["title"]} {x["ms"]:.2f}, {x["mib"]:.0f}' + (f' ({x["launches"]})' if x.get('launches') else '')
            for x in listed
        ]
        print('  ', ', '.join(group), '|', '; '.join(cells))
print('== other times')
for line in lines:
    part = line['part'] in ('train', 'capture', 'flex', 'tune')
    if part and line not in failures and 'seconds' not in line:
        print('  ', short(line))
