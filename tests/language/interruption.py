"""Interrupted inference: in the same process between two batches, and of a tool by SIGKILL within a batch."""


class Stop(Exception):
    pass


def stop_after(inferencer, batches, monkeypatch):
    """Let the inferencer stop after this number of batches; return the list of those that it processes."""
    forward, ran = inferencer.forward, []

    def limited(batch, **options):
        if len(ran) == batches:
            raise Stop
        ran.append(batch.indices)
        return forward(batch, **options)

    monkeypatch.setattr(inferencer, 'forward', limited)
    return ran


def killing(tool):
    """Return a script that runs a tool with the arguments that follow, and kills it with half of a batch written."""
    return f"""
import os, runpy, signal, sys
import mmattn.language.progress_file as progress_file

append, calls = progress_file._append, []

def append_and_die(file, path, records):
    calls.append(records)
    if len(calls) == 3:  # the settings are the first
        file.write(records[0].encode()[:20])
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    append(file, path, records)

progress_file._append = append_and_die
sys.argv[0] = {str(tool)!r}
runpy.run_path(sys.argv[0], run_name='__main__')
"""
