"""What processors have an instruction for and numba no word: about bits, and about memory that will be needed."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from flockstep.lda.core.expectations import in_place

AHEAD = 2
"""How many rows before its turn to ask for one; more was no faster."""
_LINE = 16
"""Numbers of 32 bits that memory hands over at once, on most processors."""


@intrinsic
def lowest_bit(context: Any, bits: Any) -> Any:
    """The number of the lowest bit that is set; one has to be."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), code


@intrinsic
def how_many(context: Any, bits: Any) -> Any:
    """The number of bits that are set."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), code


@intrinsic
def shifted(context: Any, bits: Any, by: Any) -> Any:
    """``bits >> by`` in 32 bits: numba would take 64, and half as many at a time."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.lshr(*arguments)

    return types.uint32(types.uint32, types.uint32), code


@intrinsic
def _fetch_line(context: Any, table: Any, number: Any) -> Any:
    """Ask for the line that holds this number of a table; what it has is not looked at, and nobody waits."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        start = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        place = builder.bitcast(builder.gep(start, [arguments[1]]), byte)
        kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        call = builder.module.declare_intrinsic("llvm.prefetch", (byte,), kind)
        # To be read, to stay in the cache, data.
        builder.call(call, [place, *(ir.Constant(flag, choice) for choice in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(table, types.int64), code


@in_place
def fetch(table: Any, row: Any) -> None:
    """Ask for a row of a table that is in one piece: rows in no order come too late if nobody says which is next."""
    first = np.int64(row) * table.shape[1]
    for k in range(0, table.shape[1], _LINE):
        _fetch_line(table, first + k)  # type: ignore[call-arg]
