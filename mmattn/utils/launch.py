"""torch's launcher without a traceback, and with the exit code of the first process that failed.

``python -m mmattn.utils.launch`` has the arguments of ``python -m torch.distributed.run``.
"""

import os
import signal
import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main, parse_args


def launch(arguments: list[str]) -> int:
    """Run the processes, and return the exit code: 128 plus the signal's number if a signal ended the process.

    SIGUSR1 ends the processes as SIGTERM does. They have five minutes to save a checkpoint, unless the environment
    variable ``TORCH_ELASTIC_SHUTDOWN_TIMEOUT`` is set, in seconds. Older versions of torch wait for 30 seconds.
    """
    os.environ.setdefault('TORCH_ELASTIC_SHUTDOWN_TIMEOUT', '300')
    args = parse_args(arguments)
    count = args.nproc_per_node
    if count not in ('auto', 'cpu', 'gpu') and not (count.isdecimal() and int(count)):
        print(f'error: the number of processes (GPUS) must be an integer, at least 1; got {count}', file=sys.stderr)
        return 2
    signal.signal(signal.SIGUSR1, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    try:
        main(arguments)
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
    except SignalException as error:
        code = -error.sigval
    except RuntimeError as error:
        if 'EADDRINUSE' not in str(error):
            raise
        print(f'error: port {args.master_port} is in use; set another one, such as PORT=29501', file=sys.stderr)
        return 1
    else:
        return 0
    return code if code >= 0 else 128 - code


if __name__ == '__main__':
    sys.exit(launch(sys.argv[1:]))
