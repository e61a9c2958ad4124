"""torch's launcher, without a traceback of its own, and with the exit code of the process that failed first.

``python -m mmattn.utils.launch`` takes the arguments of ``python -m torch.distributed.run``.
"""

import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main


def launch(arguments: list[str]) -> int:
    """Run the processes and return the exit code: of a process that a signal ended, 128 and the signal's number."""
    try:
        main(arguments)
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
    except SignalException as error:
        code = -error.sigval
    else:
        return 0
    return code if code >= 0 else 128 - code


if __name__ == '__main__':
    sys.exit(launch(sys.argv[1:]))
