"""torch's launcher without a traceback, and with the exit code of the first process that failed.

``python -m mmattn.utils.launch`` has the arguments of ``python -m torch.distributed.run``.
"""

import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main


def launch(arguments: list[str]) -> int:
    """Run the processes. Return the exit code: 128 plus the signal's number if a signal ended the process."""
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
