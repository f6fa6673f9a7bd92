"""The core's nonlinear cells as JAX primitives, and one way to call them all.

`forward` finds all states, in parallel over time, and `backward` is one exact scan at the states
found: both are kernels of the core (include/scanrnn/solve.hpp). `tangent` is the linear recurrence
of the states' directions, composed of JAX operators, and so are the derivatives of `backward`.
Nothing is solved but in `forward`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.interpreters import ad

from .. import _core
from .._array.options import solver_numbers
from .._solve_report import COLUMNS, SolveReport
from ._arguments import recurrent_sru_call, sru_call
from ._call import Call, check_state
from ._cell import (
    ACCUMULATION,
    Arrays,
    Cell,
    Dims,
    Options,
    Steps,
    absent,
    aval_like,
    batch,
    bind,
    instantiate,
    is_linear,
    present,
    zero_tangent,
)
from ._compose import STEPS
from ._fused import check_inputs, one_step, operands_of, run
from ._scan import SCAN, previous_states

_TABLE = {row["name"]: row for row in _core.nonlinear_cell_table()}

jax.tree_util.register_pytree_node(
    SolveReport, lambda report: ((report.rows,), None), lambda _, rows: SolveReport(*rows)
)


@dataclass(frozen=True)
class Settings(Options):
    """What a call does, beside its arrays."""

    #: How little a segment's start moves once it rests; 0 is the core's choice.
    tolerance: float = 0.0
    max_passes: int = 8
    #: Steps of a segment; 0 is the core's choice.
    segment: int = 0
    #: Whether there is a report.
    report: bool = False


# ---- Composed forms ------------------------------------------------------------------------------

States: TypeAlias = tuple[Array, ...]


def _recurrence(
    gains: Sequence[States], drives: States, initial: States, steps: Steps
) -> tuple[States, States]:
    """States s_t = gains_t s_{t-1} + drives_t, and the last of each sequence.

    Args:
        gains: (B, T, D); [i][j] is the derivative of state i by state j before it.
        drives: (B, T, D), one a state.
        initial: (N, D), one a state.
        steps: where the sequences are.
    """
    options = steps.options
    if len(drives) == 1:
        plain = Options(options.reverse, options.packed, options.left_padded, options.order)
        state, final = SCAN((gains[0][0], drives[0], initial[0]), steps.index, steps.reset, plain)
        return (state,), (final,)

    # What enters a first step is in its drive, and no step before it is seen.
    first, connected = steps.first(), steps.connected()
    enters = [jnp.where(first & connected, steps.spread(s), 0) for s in initial]
    drives = tuple(
        x + sum(map(operator.mul, row, enters)) for row, x in zip(gains, drives, strict=True)
    )
    shape = drives[0].shape
    sees = jnp.broadcast_to(connected & ~first, shape)
    indices = range(len(drives))

    def merge(earlier: Any, later: Any) -> Any:
        (sees_a, a, x), (sees_b, b, y) = earlier, later
        gain = [[sum(b[i][k] * a[k][j] for k in indices) for j in indices] for i in indices]
        moved = [y[i] + sum(b[i][k] * x[k] for k in indices) for i in indices]
        # No NaN * 0 from steps that aren't seen.
        return (
            sees_a & sees_b,
            gain,
            [jnp.where(sees_b, m, v) for m, v in zip(moved, y, strict=True)],
        )

    wide = [[jnp.broadcast_to(g, shape) for g in row] for row in gains]
    _, _, states = jax.lax.associative_scan(
        merge, (sees, wide, list(drives)), reverse=options.reverse, axis=1
    )
    pairs = zip(initial, states, strict=True)
    return tuple(states), tuple(jnp.where(steps.empty(), s, steps.at_last(x)) for s, x in pairs)


def _tangent(name: str, residuals: Arrays, directions: Arrays, steps: Steps) -> list[Array]:
    """Directions of the output, the kept state and the final states, at the states found."""
    row = _TABLE[name]
    n, count = len(row["inputs"]), len(row["states"])
    inputs, initial, saved = residuals[:n], residuals[n : n + count], residuals[n + count :]
    main, dtype = inputs[0], ACCUMULATION[inputs[0].dtype]
    valid = steps.valid()

    def widened(array: Array) -> Array:
        array = array.astype(dtype)
        # Whatever is in the padding stays there.
        return jnp.where(valid, array, 0) if array.ndim == 3 else array

    there = [
        present(x) or not spec["optional"] for x, spec in zip(inputs, row["inputs"], strict=True)
    ]
    values = [widened(x) if t else None for x, t in zip(inputs, there, strict=True)]
    moves = [
        None if v is None else widened(d) if present(d) else jnp.zeros_like(v)
        for v, d in zip(values, directions, strict=False)
    ]
    sequences = steps.index.shape[0] - 1 if steps.options.packed else steps.batch
    starts = tuple(
        d.astype(dtype) if present(d) else jnp.zeros((sequences, main.shape[2]), dtype)
        for d in directions[n:]
    )
    keeps = row["kept_state"] >= 0
    if steps.time == 0:
        nothing = jnp.zeros_like(main)
        return [nothing, nothing if keeps else absent().astype(main.dtype), *starts]

    out, kept = saved
    found = [(out if i == row["output_state"] else kept).astype(dtype) for i in range(count)]
    before = tuple(map(functools.partial(previous_states, steps=steps), found, initial))

    def step(before: States, values: Any) -> Any:
        return STEPS[name](before, *values, *steps.options.values)

    _, along = jax.linearize(step, before, values)
    nowhere = tuple(map(jnp.zeros_like, before))
    still = jax.tree.map(jnp.zeros_like, values)
    units = [
        tuple(jnp.ones_like(b) if i == j else jnp.zeros_like(b) for i, b in enumerate(before))
        for j in range(count)
    ]
    columns = [along(unit, still)[0] for unit in units]
    drives, _ = along(nowhere, moves)
    states, final = _recurrence(list(zip(*columns, strict=True)), drives, starts, steps)
    entering = tuple(map(functools.partial(previous_states, steps=steps), states, starts))
    _, out = along(entering, moves)
    results = (out, states[row["kept_state"]]) if keeps else (out,)
    out, *more = (jnp.where(valid, x, 0).astype(main.dtype) for x in results)
    return [out, *(more or [absent().astype(main.dtype)]), *final]


def transposed(
    tangent: Callable[[Arrays, Arrays, Steps], Arrays],
    residuals: Arrays,
    cotangents: Arrays,
    steps: Steps,
    wanted: Sequence[bool],
) -> list[Array]:
    """Gradients of the wanted inputs from cotangents of what a tangent gives."""

    def function(chosen: Sequence[Array]) -> Arrays:
        rest = iter(chosen)
        return tangent(residuals, [next(rest) if w else absent() for w in wanted], steps)

    shapes = [x for x, want in zip(residuals, wanted, strict=False) if want]
    pairs = zip(cotangents, jax.eval_shape(function, shapes), strict=True)
    (grads,) = jax.linear_transpose(function, shapes)(
        [g if present(g) else jnp.zeros(y.shape, y.dtype) for g, y in pairs]
    )
    rest = iter(grads)
    return [
        next(rest) if want else absent().astype(x.dtype)
        for want, x in zip(wanted, residuals, strict=False)
    ]


def _backward(
    name: str, residuals: Arrays, cotangents: Arrays, steps: Steps, wanted: Sequence[bool]
) -> list[Array]:
    """Gradients of the wanted inputs, from cotangents of the output and the final states."""
    out, *final = cotangents
    tangent = functools.partial(_tangent, name)
    return transposed(tangent, residuals, [out, absent(), *final], steps, wanted)


# ---- Primitives ----------------------------------------------------------------------------------


#: Where the kept state is among the results.
_KEPT = 1


@dataclass(frozen=True, eq=False)
class SolveCell(Cell):
    """The primitives of a nonlinear cell, see `Cell`.

    The results of `forward` are the output; the state that the cell keeps beside it, absent unless
    it does and it is saved; the final states; and the report, absent unless asked for. Residuals
    are the inputs, the initial states, the output if that is a state, and the state that is kept.
    """

    family = "solve"

    @property
    def has_checkpoints(self) -> bool:
        """There are none: the states themselves are saved."""
        return False

    @property
    def _doubles(self) -> tuple[int, ...]:
        return (len(self.result_roles),)

    def seen_by_backward(self, results: Sequence[Any]) -> list[Any]:
        """All but the kept state's."""
        return [*results[:_KEPT], *results[_KEPT + 1 :]]

    def _attributes(self, options: Options) -> dict[str, Any]:
        attributes = super()._attributes(options)
        del attributes["report"]
        return attributes | {"segment": np.int64(attributes["segment"])}

    def _forward_avals(self, *avals: Any, options: Any, save: bool) -> list[Any]:
        results = super()._forward_avals(*avals, options=options, save=save)
        main = avals[self.main]
        if not save:
            results[_KEPT] = aval_like(main, (0,), main.dtype)
        (sequences, _), _ = self._shapes(main.shape, avals[-2].shape, options)
        shape = (sequences, COLUMNS) if options.report else (0,)
        return [*results, aval_like(main, shape, jax.dtypes.canonicalize_dtype(np.float64))]

    def _forward_jvp(
        self, operands: Arrays, tangents: Sequence[Any], *, options: Options, save: bool
    ) -> tuple[list[Array], list[Any]]:
        results, out = super()._forward_jvp(operands, tangents, options=options, save=True)
        if not save:
            results[_KEPT] = absent().astype(results[_KEPT].dtype)
        if not present(results[_KEPT]):
            out[_KEPT] = zero_tangent(results[_KEPT])
        return results, out

    def _tangent_transpose(
        self, cotangents: Sequence[Any], *operands: Any, options: Options
    ) -> list[Any]:
        if isinstance(cotangents[_KEPT], ad.Zero):
            given = self.seen_by_backward(cotangents)
            return super()._tangent_transpose(given, *operands, options=options)
        # A derivative of `backward` by the kept state, which it reads: no kernel has its cotangent.
        residuals, directions, steps = self._split(operands, options)
        wanted = tuple(map(is_linear, directions))
        given = [instantiate(ct) for ct in cotangents]
        grads = transposed(self.tangent, residuals, given, steps, wanted)
        chosen = [g if want else None for g, want in zip(grads, wanted, strict=True)]
        return [*(None for _ in residuals), *chosen, None, None]

    def _forward_batch(
        self, operands: Arrays, dims: Dims, *, options: Any, save: bool
    ) -> tuple[list[Array], list[int | None]]:
        def call(*merged: Array) -> list[Array]:
            return bind(self.forward_p, *merged, options=options, save=save)

        results = [*self.result_roles, "b" if options.report else ""]
        if not save:
            results[_KEPT] = ""
        # A report is of all channels of a sequence: with one, "b" alone can be merged.
        return batch(call, operands, dims, (*self.roles, "b", "bt"), results, options)


def _cell(row: Mapping[str, Any]) -> SolveCell:
    """A row of the core's table as primitives.

    Operands: the row's inputs, (B, T, D) or (D,), and the initial states, (N, D).
    """
    name, states = row["name"], ("bd",) * len(row["states"])
    steps = [("btd" if row[f"{which}_state"] >= 0 else "") for which in ("output", "kept")]
    roles = (*("d" if spec["vector"] else "btd" for spec in row["inputs"]), *states)
    return SolveCell(
        name=name,
        roles=roles,
        residual_roles=(*roles, *steps),
        main=0,
        residuals=lambda inputs, results: (
            *inputs,
            *(x if role else absent() for x, role in zip(results, steps, strict=False)),
        ),
        tangent=functools.partial(_tangent, name),
        backward=functools.partial(_backward, name),
        kind=row["kind"],
        result_roles=("btd", steps[1], *states),
    )


CELLS = {name: _cell(row) for name, row in _TABLE.items()}


# ---- Calls ---------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames=("name", "call"))
def _run(
    arrays: Sequence[Array | None],
    states: Sequence[Array | None],
    index: Array | None,
    reset: Array | None,
    *,
    name: str,
    call: Call,
) -> tuple[Array, States, Array]:
    inputs = operands_of(arrays, _TABLE[name]["inputs"], call)
    h, _, *final, report = CELLS[name](
        (*inputs, *map(call.state, states)), call.index(index), call.reset(reset), call.options
    )
    return call.unwhole(h), tuple(map(call.unstate, final)), report


def _settings(
    fn: str,
    options: Options,
    tolerance: float | None,
    max_passes: int,
    segment: int | None,
    report: bool,
) -> Settings:
    change, passes, steps = solver_numbers(fn, tolerance, max_passes, segment)
    return Settings(
        **asdict(options),
        tolerance=change,
        max_passes=passes,
        segment=steps,
        report=report,
    )


def solve(
    fn: str,
    name: str,
    arguments: Mapping[str, Any],
    states: Mapping[str, Any],
    values: tuple[float, ...],
    *,
    tolerance: float | None = None,
    max_passes: int = 8,
    segment: int | None = None,
    return_report: bool = False,
    **options: Any,
) -> tuple[Array, States, SolveReport]:
    """Check the arguments of a nonlinear cell, and call it.

    Args:
        fn: the public function, for error texts.
        name: the cell's, in the core's table.
        arguments: its inputs by their public names, in the table's order; None for absent ones.
        states: those before the first step by their public names, in the table's order.
        values: the cell's options, in the table's order.
        tolerance: as the user gave it, and likewise all that follow.
        max_passes: see tolerance.
        segment: see tolerance.
        return_report: see tolerance. Without it the report has no rows.
        options: see tolerance.

    Returns:
        h, the final states and the report, as the public functions return them.

    Raises:
        ValueError: a shape or an option is wrong.
        TypeError: a dtype is wrong, or a required argument is missing.
    """
    specs = _TABLE[name]["inputs"]
    arrays, call, index, flags = check_inputs(fn, specs, arguments, values, **options)
    settings = _settings(fn, call.options, tolerance, max_passes, segment, return_report)
    checked = [check_state(fn, n, value, call) for n, value in states.items()]
    h, final, rows = _run(
        arrays, checked, index, flags, name=name, call=replace(call, options=settings)
    )
    return h, final, SolveReport(rows)


def solve_step(
    fn: str,
    name: str,
    arguments: Mapping[str, Any],
    states: Mapping[str, Any],
    values: tuple[float, ...],
) -> tuple[Array, States]:
    """`solve` on one step: arguments have no time axis."""
    sequences = one_step(fn, _TABLE[name]["inputs"], arguments)
    before = {n.removesuffix("0"): value for n, value in states.items()}
    h, final, _ = solve(fn, name, sequences, before, values, max_passes=0)
    return h[..., 0, :], final


def results(
    h: Array, final: Any, report: SolveReport, return_final: bool, return_report: bool
) -> Any:
    """What a public function returns: h, and what else was asked for."""
    more = [x for x, wanted in ((final, return_final), (report, return_report)) if wanted]
    return (h, *more) if more else h


def run_sru(
    fn: str,
    inputs: tuple[Any, Any, Any, Any, Any, Any, Any, str],
    v_f: Any,
    v_r: Any,
    **options: Any,
) -> tuple[Array, Array, SolveReport]:
    """`sru` with its recurrent weights or without.

    Args:
        fn: the public function, for error texts.
        inputs: u to the activation, as in `sru_call`.
        v_f: as the user gave it, and likewise all that follow.
        v_r: see v_f.
        options: see v_f.
    """
    if v_f is not None or v_r is not None:
        h, (final,), report = solve(*recurrent_sru_call(fn, *inputs, v_f, v_r), **options)
        return h, final, report
    if options.pop("return_report", False):
        raise ValueError(f"{fn}: return_report was given, expected v_f and v_r with it")
    for name in ("tolerance", "max_passes", "segment"):
        options.pop(name, None)  # of no consequence
    h, final = run(*sru_call(fn, *inputs), **options)
    return h, final, SolveReport(absent())
