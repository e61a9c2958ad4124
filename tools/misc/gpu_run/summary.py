"""Print what results.jsonl says, within the 12,000 characters that come back: failures first, then times."""

import json
import sys

lines = [json.loads(line) for line in open(sys.argv[1], encoding='utf-8')]
bad = [x for x in lines if x.get('ok') is False or 'error' in x]
print(f'== {len(lines)} findings, {len(bad)} failures')
for x in bad[:45]:
    text = {k: v for k, v in x.items() if k not in ('s', 'trace', 'ok', 'ran')}
    print('  ', json.dumps(text, ensure_ascii=False)[:230])
for part in ('layers', 'ops'):
    key = 'comparison' if part == 'layers' else 'workload'
    kind = 'mode' if part == 'layers' else 'dtype'
    rows = [x for x in lines if x['part'] == part and 'ms' in x and x['pass'] == 'forward + backward']
    print(f'== {part}, forward + backward: ms, MiB')
    for group in dict.fromkeys((x[key], x[kind]) for x in rows):
        cells = [
            f'{x["title"]} {x["ms"]:.2f} ms {x["mib"]:.0f}'
            + (f' ({x["launches"]} launches)' if x.get('launches') else '')
            for x in rows
            if (x[key], x[kind]) == group
        ]
        print('  ', ' '.join(group).replace('torch.', ''), '|', '; '.join(cells))
print('== kernels, ms of the kernel / of the composition')
for x in lines:
    if x['part'] == 'time' and 'state' in x:
        print(
            '  ',
            x['operator'],
            x['kernel'],
            x['dtypes'],
            x['pass'],
            x['state'],
            x.get('time'),
            x.get('composition'),
            x.get('message', '')[:80],
        )
for x in lines:
    if x['part'] in ('train', 'capture', 'flex') and 'error' not in x:
        print('  ', json.dumps({k: v for k, v in x.items() if k not in ('s', 'size')}, ensure_ascii=False)[:260])
