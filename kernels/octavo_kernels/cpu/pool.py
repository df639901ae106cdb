"""A pool of threads for kernels of microseconds, on a machine that other processes use too.

OpenMP waits at the end of a region for every thread, even if another process keeps that thread from running. Beside one
busy process, a region of 20 µs took 4 ms on two cores. In this pool, threads *claim* chunks of a job. The caller works
too, and waits only for chunks that another thread has begun. An idle worker spins for some microseconds, which covers
the gaps inside a step. Then it sleeps on a futex. A job of one chunk runs in the caller and wakes no worker.

A job is a function ``body(*args, chunk)`` that Numba has compiled. The ticket word holds the job's number and the
number of chunks left. The thread that lowers the ticket by one owns a chunk. That thread has read the right job,
because a caller publishes a new job only after all chunks of the last one are done.
"""

import logging
import platform
import sys
import threading
import weakref
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numpy.typing import NDArray

from octavo_kernels.cpu.jit import intrinsic, jit

log = logging.getLogger(__name__)

# Byte offsets in the control block; each on a cache line of its own.
_TICKET, _DONE, _JOB, _SLEEPERS, _WAKE, _STOP, _BUSY = range(0, 7 * 64, 64)
_CONTEXT = _JOB + 8
_LEFT = (1 << 32) - 1
_NEXT_JOB = 1 << 32
_SPINS = 2000  # a pause takes 40 to 140 cycles: 30 to 100 microseconds
_PATIENCE = 200  # spins before a caller that waits for a chunk yields its processor

_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
_FUTEX_WAIT, _FUTEX_WAKE = 128, 129  # private to this process

_I32, _I64, _VOID = ir.IntType(32), ir.IntType(64), ir.VoidType()


def _pointer(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


@intrinsic
def _read(typingctx: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(builder, args[0], _I64), "seq_cst", 8)

    return types.int64(types.int64), codegen


@intrinsic
def _write(typingctx: Any, address: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], _pointer(builder, args[0], _I64), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def _add(typingctx: Any, address: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _pointer(builder, args[0], _I64), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def _swap_if(typingctx: Any, address: Any, expected: Any, value: Any) -> Any:
    """Put ``value`` at ``address`` if ``expected`` is there; return True if it was."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pair = builder.cmpxchg(_pointer(builder, args[0], _I64), args[1], args[2], "seq_cst", "seq_cst")
        return builder.extract_value(pair, 1)

    return types.boolean(types.int64, types.int64, types.int64), codegen


@intrinsic
def _pause(typingctx: Any) -> Any:
    machine = platform.machine()

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if machine == "x86_64":
            function = ir.FunctionType(_VOID, [])
            builder.call(cgutils.get_or_insert_function(builder.module, function, "llvm.x86.sse2.pause"), [])
        elif machine == "aarch64":
            function = ir.FunctionType(_VOID, [_I32])
            hint = cgutils.get_or_insert_function(builder.module, function, "llvm.aarch64.hint")
            builder.call(hint, [ir.Constant(_I32, 1)])  # yield
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def _yield_processor(typingctx: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_I32, []), "sched_yield")
        builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def _futex(typingctx: Any, address: Any, operation: Any, value: Any) -> Any:
    number = _SYS_FUTEX

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_I64, [_I64], var_arg=True), "syscall"
        )
        builder.call(function, [ir.Constant(_I64, number), *args, ir.Constant(_I64, 0)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def _call(typingctx: Any, function: Any, context_address: Any, chunk: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.call(_pointer(builder, args[0], ir.FunctionType(_VOID, [_I64, _I64])), args[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def job(typingctx: Any, body: Any, arguments: Any) -> Any:
    """Return the address of a function ``(context, chunk)``, and of that context.

    The function calls ``body(*arguments, chunk)``. The context lies on the stack of the kernel that calls ``job``, so
    call ``launch`` in the same kernel.
    """
    call = typingctx.resolve_function_type(body, (*arguments.types, types.int64), {})

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        compiled = body.dispatcher.get_compile_result(call)
        context.active_code_library.add_linking_library(compiled.library)
        packed = cgutils.alloca_once_value(builder, args[1])
        name = context.mangler("octavo_job", (arguments,), uid=compiled.fndesc.uid)
        function = ir.Function(builder.module, ir.FunctionType(_VOID, [_I64, _I64]), name)
        function.linkage = "internal"
        inner = ir.IRBuilder(function.append_basic_block())
        values = inner.load(inner.inttoptr(function.args[0], packed.type))
        unpacked = [inner.extract_value(values, i) for i in range(len(arguments.types))]
        context.call_internal_no_propagate(inner, compiled.fndesc, call, [*unpacked, function.args[1]])
        inner.ret_void()
        addresses = [builder.ptrtoint(function, _I64), builder.ptrtoint(packed, _I64)]
        return context.make_tuple(builder, signature.return_type, addresses)

    return types.UniTuple(types.int64, 2)(body, arguments), codegen


@jit()
def _work_off(control: int) -> None:
    """Run chunks until none is left."""
    while True:
        ticket = _read(control + _TICKET)
        if ticket & _LEFT == 0:
            return
        function, context = _read(control + _JOB), _read(control + _CONTEXT)
        if _swap_if(control + _TICKET, ticket, ticket - 1):
            _call(function, context, (ticket & _LEFT) - 1)
            _add(control + _DONE, 1)


@jit()
def launch(control: int, chunks: int, work: Any) -> None:
    """Run ``chunks`` chunks of a ``job``, the last one first, on all free threads; return when all are done.

    If another thread uses the pool, the caller runs all of its chunks itself.
    """
    function, context = work
    if chunks <= 1 or control == 0 or not _swap_if(control + _BUSY, 0, 1):
        for chunk in range(chunks):
            _call(function, context, chunk)
        return
    _write(control + _JOB, function)
    _write(control + _CONTEXT, context)
    _write(control + _DONE, 0)
    _write(control + _TICKET, (_read(control + _TICKET) & ~_LEFT) + _NEXT_JOB + chunks)
    if _read(control + _SLEEPERS) > 0:
        _add(control + _WAKE, 1)
        _futex(control + _WAKE, _FUTEX_WAKE, chunks - 1)
    _work_off(control)
    spins = 0
    while _read(control + _DONE) < chunks:
        spins += 1
        if spins < _PATIENCE:
            _pause()
        else:
            _yield_processor()
    _write(control + _BUSY, 0)


@jit()
def _serve(control: int) -> None:
    """Run a worker until the pool stops: it runs chunks, spins, then sleeps."""
    while True:
        spins = 0
        while _read(control + _TICKET) & _LEFT == 0 and spins < _SPINS:
            spins += 1
            _pause()
        if _read(control + _STOP) != 0:
            return
        if _read(control + _TICKET) & _LEFT != 0:
            _work_off(control)
            continue
        # Count the worker as a sleeper before its last check: the launch of a later job then finds the count.
        before = _read(control + _WAKE) & _LEFT
        _add(control + _SLEEPERS, 1)
        if _read(control + _TICKET) & _LEFT == 0 and _read(control + _STOP) == 0:
            _futex(control + _WAKE, _FUTEX_WAIT, before)
        _add(control + _SLEEPERS, -1)


@jit()
def _dismiss(control: int) -> None:
    _write(control + _STOP, 1)
    _add(control + _WAKE, 1)
    _futex(control + _WAKE, _FUTEX_WAKE, 1 << 30)


class ThreadPool:
    """``num_threads - 1`` workers; the thread that launches a job is the other one.

    The pool ends with its last reference.
    """

    def __init__(self, num_threads: int) -> None:
        if num_threads > 1 and (_SYS_FUTEX is None or sys.platform != "linux"):
            log.warning("kernels run on one thread: no futex on %s %s", sys.platform, platform.machine())
            num_threads = 1
        self.num_threads = num_threads
        # Workers may outlive this object by a moment: they hold the block that they look at.
        block = np.zeros(8 * 64, np.int64)
        self.control = (block.ctypes.data + 63) // 64 * 64 if num_threads > 1 else 0
        workers = [
            threading.Thread(target=_live, args=(block, self.control), name=f"octavo-kernel-{i}", daemon=True)
            for i in range(1, num_threads)
        ]
        for worker in workers:
            worker.start()
        if workers:
            weakref.finalize(self, _dismiss, self.control)


def _live(block: NDArray[np.int64], control: int) -> None:
    _serve(control)
    del block
