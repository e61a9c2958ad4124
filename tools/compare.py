"""Compare two configs of your own: is the second better than the first on your data?

    python tools/compare.py stock.py mine.py --seeds 5
    python tools/compare.py stock.py mine.py --seeds 5 --cfg-options train_cfg.max_iters=1000 --units '(patient\\d+)'

Both configs are trained with the same seeds by tools/train.py, and tested on the same data by tools/test.py. What must
be equal is checked before. The work dir gets comparison.md (a table with the difference and its interval),
comparison.png and results.json. After an interruption, the same command resumes: finished runs are not repeated. A
larger --seeds adds runs. See docs/custom_data.md.

Args:
    configs (CONFIG): the baseline, and what is compared
    seeds: trainings of each config, with the seeds 0, 1, …
    units (REGEX): images whose names have the same match, such as of one patient, are drawn together; default: each
        alone
    work_dir: default: work_dirs/compare_CONFIG_CONFIG
"""

import re
from pathlib import Path

from mmattn.engine import CfgOptions
from mmattn.utils.arguments import UsageError, command
from mmattn.utils.command import run
from reproduction.machine import MachineArguments
from reproduction.two_configs import compare_configs, read_pair


@command
def main(
    configs: tuple[Path, Path],
    machine: MachineArguments,
    *,
    seeds: int = 5,
    units: str | None = None,
    work_dir: Path | None = None,
    cfg_options: CfgOptions = None,
) -> None:
    if seeds < 1:
        raise UsageError(f'--seeds must be 1 or more; got {seeds}')
    try:
        re.compile(units or '')
    except re.error as error:
        raise UsageError(f"--units must be a regular expression; got '{units}': {error}") from None
    runs = machine.read()
    pair = read_pair(configs, cfg_options or {})
    work_dir = work_dir or Path('work_dirs', '_'.join(['compare', *pair.names]))
    print(compare_configs(pair, work_dir, seeds, runs, units))
    print(f'{work_dir}: comparison.md, comparison.png, results.json')


if __name__ == '__main__':
    run(main)
