"""Many runs of one kind, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from typing import TypeVar

from flockstep.backends.real.launch.child_processes import context

Job = TypeVar("Job")
Result = TypeVar("Result")


def run_all(run: Callable[[Job], Result], jobs: Sequence[Job], workers: int) -> Iterator[Result]:
    """Every job's result, as they are ready; several at a time keep a machine busy."""
    with ProcessPoolExecutor(workers, mp_context=context()) as pool:
        left = {pool.submit(run, job) for job in jobs}
        try:
            while left:
                done, left = wait(left, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
