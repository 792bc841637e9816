"""Commands in processes that are forked from the server of ``fs.launch``, which has imported torch.

A new interpreter takes four seconds of a core until it has imported torch and made its first optimizer, and one that
calls ``fs.launch`` starts a server that takes them again. What is looked at is what a command does after that: it has a
process of its own, with its own arguments, variables, folder and files for what it says, and ends as any other.
"""

import atexit
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from multiprocessing import connection, forkserver, process
from pathlib import Path

from flockstep.backends.real.launch.child_processes import context


class Started:
    """A command on its way, like ``subprocess.Popen``'s: ``arguments`` are what would follow ``python``."""

    def __init__(self, arguments, cwd=None, env=None):
        self.arguments = [str(argument) for argument in arguments]
        self._folder, self._told = tempfile.TemporaryDirectory(), None
        files = [str(Path(self._folder.name) / name) for name in ("out", "err")]
        for file in files:
            Path(file).touch()
        self._files = files
        environment = dict(os.environ) if env is None else env
        forking = context()
        forkserver.ensure_running()
        # The children that it starts by itself come from the same server.
        address = forkserver._forkserver._forkserver_address  # type: ignore[attr-defined]
        self._process = forking.Process(
            target=_become, args=(self.arguments, str(cwd or Path.cwd()), environment, files, address)
        )
        self._process.start()

    def communicate(self, timeout=None):
        """What it said, after its end."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            self.kill()
            raise subprocess.TimeoutExpired(self.arguments, timeout)
        if self._told is None:
            self._told = tuple(Path(file).read_text() for file in self._files)
            self._folder.cleanup()
        return self._told

    @property
    def returncode(self):
        """None while it runs."""
        return self._process.exitcode

    def kill(self):
        """End it, if it has not ended."""
        self._process.kill()
        self._process.join()
        self._told = self._told or ("", "")
        self._folder.cleanup()


def run(arguments, *, cwd=None, env=None, timeout=None):
    """``subprocess.run([sys.executable, *arguments], capture_output=True, text=True)``."""
    started = Started(arguments, cwd, env)
    said, errors = started.communicate(timeout)
    return subprocess.CompletedProcess(started.arguments, started.returncode, said, errors)


def flock(nodes, arguments, *, cwd=None, env=None, timeout=None):
    """The same on several nodes, with the variables that torchrun sets; each one's end."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    world = (os.environ if env is None else env) | meeting | {"WORLD_SIZE": str(nodes), "LOCAL_WORLD_SIZE": str(nodes)}
    started = [Started(arguments, cwd, world | {"RANK": str(k), "LOCAL_RANK": str(k)}) for k in range(nodes)]
    try:
        said = [one.communicate(timeout) for one in started]
    finally:
        for one in started:
            one.kill()
    return [
        subprocess.CompletedProcess(one.arguments, one.returncode, *told)
        for one, told in zip(started, said, strict=True)
    ]


def _end_with_parent():
    """A test that is interrupted leaves nobody behind."""
    connection.wait([process.parent_process().sentinel])
    os._exit(1)


def _become(arguments, cwd, environment, files, address):
    """Be ``python *arguments`` from here on; never returns."""
    for number, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_APPEND), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    # Where a child that it starts looks for a script that was given by a relative path.
    process.ORIGINAL_DIR = cwd  # type: ignore[attr-defined]
    forkserver._forkserver._forkserver_address = address  # type: ignore[attr-defined]
    forkserver._forkserver.ensure_running = lambda: None  # type: ignore[method-assign]
    code = 0
    try:
        if arguments[0] == "-m":
            sys.argv, first = arguments[1:], cwd
        else:
            sys.argv, first = arguments, str(Path(arguments[0]).resolve().parent)
        sys.path[:0] = [first, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
        if arguments[0] == "-m":
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as left:
        if isinstance(left.code, str):
            sys.stderr.write(left.code + "\n")
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
