"""torch's launcher without a traceback, and with the exit code of the first process that failed.

``python -m mmattn.utils.launch`` has the arguments of ``python -m torch.distributed.run``.
"""

import os
import signal
import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main


def launch(arguments: list[str]) -> int:
    """Run the processes. Return the exit code: 128 plus the signal's number if a signal ended the process.

    SIGUSR1 ends the processes as SIGTERM does. They have five minutes to save a checkpoint, unless the environment
    variable ``TORCH_ELASTIC_SHUTDOWN_TIMEOUT`` is set, in seconds; older versions of torch wait for 30 seconds.
    """
    os.environ.setdefault('TORCH_ELASTIC_SHUTDOWN_TIMEOUT', '300')
    signal.signal(signal.SIGUSR1, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
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
