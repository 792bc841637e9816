"""Commands in processes that are forked from the server of ``fs.launch``, which has imported torch.

A new interpreter takes four seconds of a core until it has imported torch and made its first optimizer, and one that
calls ``fs.launch`` starts a server that takes them again. What is looked at is what a command does after that: it has a
process of its own, with its own arguments, variables, folder and files for what it says, and ends as any other.
"""

import atexit
import ctypes
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from functools import cache
from multiprocessing import connection, forkserver, process
from pathlib import Path

from forked_python import Stream

from flockstep.backends.real.launch.child_processes import context


class Started:
    """A command on its way, like ``subprocess.Popen``'s: ``arguments`` are what would follow ``python``."""

    def __init__(self, arguments, cwd=None, env=None, python=None):
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
            target=_become, args=(self.arguments, str(cwd or Path.cwd()), environment, files, address, python)
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


class Popen:
    """``subprocess.Popen([sys.executable, *arguments], text=True)``, as far as tests need it. Its number is its own."""

    def __init__(self, arguments, *, cwd=None, env=None, stdin=None, stdout=None, stderr=None, python=None):
        forking = context()
        forkserver.ensure_running()
        self.args, self.stdin, self.stdout, self.stderr = [str(argument) for argument in arguments], None, None, None
        theirs, pipes = [], []
        for number, (name, asked) in enumerate({"stdin": stdin, "stdout": stdout, "stderr": stderr}.items()):
            if asked == subprocess.PIPE:
                ends = os.pipe()
                pipes.append(ends[number > 0])
                setattr(self, name, os.fdopen(ends[number == 0], "r" if number else "w"))
                asked = pipes[-1]
            elif asked == subprocess.STDOUT:
                asked = theirs[1]
            elif asked == subprocess.DEVNULL:
                asked = os.open(os.devnull, os.O_RDWR)
                pipes.append(asked)
            theirs.append(number if asked is None else asked if isinstance(asked, int) else asked.fileno())
        address = forkserver._forkserver._forkserver_address  # type: ignore[attr-defined]
        told = (self.args, str(cwd or Path.cwd()), dict(os.environ if env is None else env))
        streams = [Stream(number) for number in theirs]
        self._process = forking.Process(target=stand_in, args=(*told, streams, os.getpid(), address, python))
        self._process.start()
        for end in pipes:
            os.close(end)
        self.pid = self._process.pid

    @property
    def returncode(self):
        """None while it runs."""
        return self._process.exitcode

    def poll(self):
        """None while it runs."""
        return self._process.exitcode

    def wait(self, timeout=None):
        """Its exit code."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def communicate(self, timeout=None):
        """What it still says to pipes, after its end."""
        said = {}

        def read(pipe):
            with pipe:
                said[pipe] = pipe.read()

        open_ones = [pipe for pipe in (self.stdout, self.stderr) if pipe is not None and not pipe.closed]
        readers = [threading.Thread(target=read, args=(pipe,), daemon=True) for pipe in open_ones]
        for reader in readers:
            reader.start()
        if self.stdin is not None:
            self.stdin.close()
        self.wait(timeout)
        for reader in readers:
            reader.join()
        return said.get(self.stdout), said.get(self.stderr)

    def send_signal(self, number):
        """Unless it has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self):
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self):
        """kill -9."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()
        self.wait()


def run(arguments, *, cwd=None, env=None, timeout=None, python=None):
    """``subprocess.run([sys.executable, *arguments], capture_output=True, text=True)``; ``python``: its executable."""
    started = Started(arguments, cwd, env, python)
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


@cache
def stub():
    """An executable that is ``python``, forked as all of these: for commands that start processes themselves.

    Whoever kills it with -9 must not count on what it stands for being gone at once: that ends a moment later.
    """
    context()
    forkserver.ensure_running()
    file = Path(tempfile.mkdtemp()) / "python"
    atexit.register(shutil.rmtree, file.parent, ignore_errors=True)
    # Without site-packages a Python starts in a fiftieth of a second.
    file.write_text(f"#!{sys.executable} -IS\n" + _STUB.format(python=sys.executable, tools=str(Path(__file__).parent)))
    with file.open("a") as script:
        script.write(f"main({forkserver._forkserver._forkserver_address!r}, {sys.path!r}, arguments)\n")  # type: ignore[attr-defined]
    file.chmod(0o700)
    return str(file)


_STUB = """import os, sys
arguments = sys.argv[2:] if sys.argv[1:2] == ["-u"] else sys.argv[1:]
if not arguments or arguments[0][0] == "-" and arguments[0] not in ("-m", "-c"):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
sys.path.append({tools!r})
from forked_python import main
"""


def stand_in(arguments, cwd, environment, streams, stub, address, python=None):
    """What a stub has forked, or ``Popen``: with its streams, where it is."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    sys.stdin = os.fdopen(0, closefd=False)
    moved = [_enter(f"/proc/{stub}/ns/{space}") for space in ("net", "mnt")]
    _become(arguments, cwd, environment, (), None if any(moved) else address, python)


def _enter(space):
    """Be in the namespace of another process, and say whether that is another one."""
    theirs = Path(space)
    if theirs.samefile(Path("/proc/self/ns", theirs.name)):
        return False
    with theirs.open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"setns {space}")
    return True


def _end_with_parent():
    """A test that is interrupted leaves nobody behind."""
    connection.wait([process.parent_process().sentinel])
    os._exit(1)


def _become(arguments, cwd, environment, files, address, python=None):
    """Be ``python *arguments`` from here on; never returns."""
    sys.executable = python or sys.executable
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
    # In a network of its own, it starts a server of its own.
    if address is not None:
        forkserver._forkserver._forkserver_address = address  # type: ignore[attr-defined]
        forkserver._forkserver.ensure_running = lambda: None  # type: ignore[method-assign]
    code = 0
    try:
        if arguments[0] in ("-m", "-c"):
            sys.argv, first = arguments[:1] + arguments[2:], cwd
        else:
            sys.argv, first = arguments, str(Path(arguments[0]).resolve().parent)
        sys.path[:0] = [first, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
        if arguments[0] == "-m":
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        elif arguments[0] == "-c":
            exec(arguments[1], {"__name__": "__main__"})
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
