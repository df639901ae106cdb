import threading
import time

import numpy as np
import pytest

from octavo_kernels.cpu.jit import jit
from octavo_kernels.cpu.pool import ThreadPool, job, launch


@jit()
def _count(out, amount, chunk):
    out[chunk] += amount


@jit()
def count(pool, chunks, out, amount):
    launch(pool, chunks, job(_count, (out, amount)))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_chunk_runs_once(threads):
    pool = ThreadPool(threads)
    out = np.zeros(300)
    for chunks in (0, 1, 2, 3, 17, 300):
        before = out.copy()
        for _ in range(50):
            count(pool.control, chunks, out, 1.0)
        assert ((out - before)[:chunks] == 50).all()
        assert ((out - before)[chunks:] == 0).all()


def test_workers_wake_from_their_sleep():
    pool, out = ThreadPool(3), np.zeros(64)
    for _ in range(5):
        time.sleep(0.02)
        count(pool.control, 64, out, 1.0)
    assert (out == 5).all()


def test_threads_may_call_at_once():
    pool = ThreadPool(3)
    outs = [np.zeros(16) for _ in range(4)]

    def call(out: np.ndarray) -> None:
        for _ in range(2000):
            count(pool.control, 16, out, 1.0)

    threads = [threading.Thread(target=call, args=(out,)) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((out == 2000).all() for out in outs)


def test_workers_end_with_their_pool():
    others = set(threading.enumerate())
    pool = ThreadPool(4)
    workers = [t for t in threading.enumerate() if t.name.startswith("octavo-kernel") and t not in others]
    assert len(workers) == 3
    del pool
    for worker in workers:
        worker.join(10)
    assert not any(worker.is_alive() for worker in workers)
