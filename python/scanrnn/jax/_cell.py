"""How a cell of the core becomes JAX primitives that every transformation understands.

A cell has three primitives, over canonical arrays (B: batch, T: time, D: channels, N: sequences,
which is B or the number of packed ones):

    forward    inputs, index, reset                    -> h, final (, checkpoints)
    tangent    residuals, directions, index, reset     -> dh, dfinal
    backward   residuals, dh, dfinal, index, reset     -> gradients

`forward` and `backward` are kernels of the core, called through XLA's foreign function interface.
`tangent` is a composition of JAX operators around a scan. For fixed residuals it is linear, and
`backward` is its transpose, so each is the other's transposition rule. JAX makes reverse mode out
of the forward's JVP, which binds `tangent`, and that transposition: `jax.grad` runs exactly two
fused kernels. Both have a JVP by differentiating a composed form, which is made of primitives
again: derivatives of every order and mode exist, and only those above the first are not fused.

Every primitive has a fixed list of operands. An absent one is an array of shape (0,), so that rules
need no case per option.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend import core
from jax.interpreters import ad, batching, mlir, xla
from jax.sharding import PartitionSpec

from .. import _core
from .._array.numpy import dtype_code

Arrays: TypeAlias = Sequence[Array]
Dims: TypeAlias = Sequence[int | None]

#: The dtypes of the core, and the one that each accumulates and returns states in.
ACCUMULATION = {
    np.dtype(jnp.float16): np.dtype(jnp.float32),
    np.dtype(jnp.bfloat16): np.dtype(jnp.float32),
    np.dtype(jnp.float32): np.dtype(jnp.float32),
    np.dtype(jnp.float64): np.dtype(jnp.float64),
    np.dtype(jnp.complex64): np.dtype(jnp.complex64),
    np.dtype(jnp.complex128): np.dtype(jnp.complex128),
}

#: Orders of the axes of (B, T, D) arrays in memory, outermost first. The core gets arrays in the
#: one that the caller's have anyway; xla_ffi.cpp has the same list.
MEMORY_ORDERS = ((0, 1, 2), (0, 2, 1), (1, 0, 2))
CHANNELS_INNERMOST, TIME_INNERMOST, TIME_OUTERMOST = range(3)


@dataclass(frozen=True)
class Options:
    """What a call does, beside its arrays: its attributes for the core."""

    #: Run from the end of each sequence.
    reverse: bool = False
    #: The index operand is cu_seqlens (and B is 1), else lengths.
    packed: bool = False
    #: The valid steps of a row are its last ones.
    left_padded: bool = False
    #: One of `MEMORY_ORDERS`.
    order: int = CHANNELS_INNERMOST
    #: The cell's own options as numbers, in the order of its table.
    values: tuple[float, ...] = ()


# ---- Operands ------------------------------------------------------------------------------------


def absent() -> Array:
    """The array that stands for an operand or a result that isn't there."""
    return jnp.zeros((0,))


def present(array: Array) -> bool:
    """Whether an operand is there. One without elements may count as absent: it has no values."""
    return array.size > 0


def varying_axes(array: Array) -> frozenset[Any]:
    """The axes of an enclosing `jax.shard_map` over which an array varies."""
    aval: Any = jax.typeof(array)
    manual = getattr(aval, "manual_axis_type", None)
    axes: frozenset[Any] = aval.vma if manual is None else manual.varying
    return axes


def _vary(array: Array, axes: tuple[Any, ...]) -> Array:
    """Make an array vary over more axes of `jax.shard_map`."""
    if not axes:
        return array
    cast: Any = getattr(jax.lax, "pcast", None)  # since JAX 0.8
    if cast is not None:
        varying: Array = cast(array, axes, to="varying")
    else:
        varying = jax.lax.pvary(array, axes)  # type: ignore[attr-defined]
    return varying


def bind(primitive: core.Primitive, *operands: Array, **params: Any) -> list[Array]:
    """Bind a primitive. Inside `jax.shard_map` its operands must all vary over the same axes."""
    axes = frozenset[Any]().union(*map(varying_axes, operands))
    operands = tuple(_vary(x, tuple(axes - varying_axes(x))) for x in operands)
    results: list[Array] = primitive.bind(*operands, **params)  # type: ignore[no-untyped-call]
    return results


def aval_like(like: Any, shape: Sequence[int], dtype: Any) -> Any:
    """An abstract array on the mesh of another one, not sharded."""
    spec = PartitionSpec(*(None,) * len(shape))  # type: ignore[no-untyped-call]
    sharding = like.sharding.update(spec=spec)
    return like.update(shape=tuple(shape), dtype=dtype, weak_type=False, sharding=sharding)


def is_linear(operand: Any) -> bool:
    """Whether a transposition rule is to give a cotangent of an operand."""
    return isinstance(operand, ad.UndefinedPrimal)


def zero_tangent(array: Array) -> Any:
    """The tangent of a result that has none."""
    return ad.Zero(jax.typeof(array).to_tangent_aval())


def instantiate(tangent: Any) -> Array:
    return absent() if isinstance(tangent, ad.Zero) else tangent


def _primitive(name: str, avals: Callable[..., Sequence[Any]]) -> core.Primitive:
    p = core.Primitive(name)
    p.multiple_results = True
    p.def_impl(functools.partial(xla.apply_primitive, p))  # type: ignore[no-untyped-call]
    p.def_abstract_eval(avals)  # type: ignore[no-untyped-call]
    return p


def _workspace_bytes(
    target: str, operands: Arrays, results: Sequence[Any], attributes: dict[str, Any]
) -> int:
    """Bytes of workspace of a CUDA call: the most that any device of this process needs."""
    try:
        devices = jax.local_devices(backend="cuda")
    except RuntimeError:  # lowered where there is none; the core says what is missing
        devices = []

    def shapes(arrays: Sequence[Any]) -> list[tuple[int, Sequence[int]]]:
        codes = [dtype_code(x.dtype) for x in arrays]
        return [(code, x.shape) for code, x in zip(codes, arrays, strict=True) if code is not None]

    return max(
        _core.ffi_workspace_bytes(
            target, shapes(operands), shapes(results), device=ordinal, **attributes
        )
        for ordinal in {device.local_hardware_id or 0 for device in devices} or {0}
    )


def _attribute(value: Any) -> Any:
    """An option as the core's handlers read it."""
    if isinstance(value, tuple):
        return np.array(value, np.float64)
    kinds = {int: np.int32, float: np.float64}
    return kinds[type(value)](value) if type(value) in kinds else value


def _lower_to_core(
    p: core.Primitive,
    avals_of: Callable[..., Sequence[Any]],
    target: str,
    attributes_of: Callable[[Options], dict[str, Any]],
    doubles: Collection[int] = (),
) -> None:
    """Lower a primitive to the core's kernels.

    Args:
        p: the primitive. The core's handler is registered under its name, for profiles.
        avals_of: its results.
        target: the core's name of the handler.
        attributes_of: what the handler gets beside its operands.
        doubles: results that the handler writes in double precision, whatever JAX uses.
    """

    def call(*operands: Array, options: Options, on_cuda: bool, **params: Any) -> list[Array]:
        # Orders are their own inverses. XLA finds that these transpositions undo the caller's.
        order = MEMORY_ORDERS[options.order]

        def reorder(x: Array) -> Array:
            return x.transpose(order) if x.ndim == 3 else x

        avals = avals_of(*map(jax.typeof, operands), options=options, **params)
        results_of: list[Any] = [jax.eval_shape(reorder, x) for x in avals]
        for i in doubles:
            results_of[i] = results_of[i].update(dtype=np.dtype(np.float64))
        ordered = list(map(reorder, operands))
        attributes = attributes_of(options)
        if on_cuda:
            size = _workspace_bytes(target, ordered, results_of, attributes)
            workspace = jax.ShapeDtypeStruct((size,), np.uint8)  # type: ignore[no-untyped-call]
            results_of.append(workspace)
        attributes = {k: _attribute(v) for k, v in attributes.items()}
        results = jax.ffi.ffi_call(p.name, results_of)(*ordered, **attributes)
        return [reorder(y).astype(x.dtype) for x, y in zip(avals, results, strict=False)]

    def refuse(ctx: Any, *_: Any, **__: Any) -> Any:
        platforms = ", ".join(ctx.module_context.platforms)
        raise NotImplementedError(f"{p.name}: there is no kernel for {platforms}, only cpu or cuda")

    mlir.register_lowering(p, refuse)
    for platform in ("cpu", "cuda"):
        lowered = functools.partial(call, on_cuda=platform == "cuda")
        mlir.register_lowering(p, mlir.lower_fun(lowered, multiple_results=True), platform=platform)


def _jvp_of(
    composed: Callable[..., Sequence[Array]],
    primals: Arrays,
    tangents: Sequence[Any],
    **params: Any,
) -> tuple[Sequence[Array], Sequence[Array]]:
    """A JVP rule that differentiates a primitive's composed form."""
    moving = [i for i, t in enumerate(tangents) if not isinstance(t, ad.Zero)]

    def function(*values: Array) -> Sequence[Array]:
        operands = list(primals)
        for i, value in zip(moving, values, strict=True):
            operands[i] = value
        return composed(*operands, **params)

    out: tuple[Sequence[Array], Sequence[Array]] = jax.jvp(
        function, [primals[i] for i in moving], [tangents[i] for i in moving]
    )
    return out


# ---- Sequences -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Steps:
    """Where the sequences of a call are, for composed forms.

    Masks broadcast to (B, T, 1). First, last, previous and next are meant in the direction in which
    the recurrence runs.
    """

    options: Options
    index: Array
    reset: Array
    batch: int
    time: int

    def _positions(self, dtype: Any) -> Array:
        return jnp.arange(self.time, dtype=dtype)[None]

    def _sequence(self) -> Array:
        """Of packed sequences: the one that each step belongs to, (T,)."""
        at = self._positions(self.index.dtype)[0]
        return jnp.searchsorted(self.index, at, side="right") - 1

    def _bounds(self) -> tuple[Array, Array]:
        """The lowest and the highest position of each sequence, (N,)."""
        if self.options.packed:
            return self.index[:-1], self.index[1:] - 1
        if not present(self.index):
            low = jnp.zeros((self.batch,), jnp.int32)
            return low, low + (self.time - 1)
        if self.options.left_padded:
            return self.time - self.index, jnp.full_like(self.index, self.time - 1)
        return jnp.zeros_like(self.index), self.index - 1

    def _ends(self) -> tuple[Array, Array]:
        """The position of the first and of the last step of each sequence, (N,)."""
        low, high = self._bounds()
        return (high, low) if self.options.reverse else (low, high)

    def _mask(self, positions: Array) -> Array:
        at = self.spread(positions[:, None])[..., 0]
        return (self._positions(at.dtype) == at)[..., None]

    def first(self) -> Array:
        """Which steps are the first of their sequence."""
        return self._mask(self._ends()[0])

    def last(self) -> Array:
        """Which steps are the last of their sequence."""
        return self._mask(self._ends()[1])

    def valid(self) -> Array:
        """Which steps belong to a sequence."""
        if self.options.packed or not present(self.index):
            return jnp.ones((1, self.time, 1), bool)
        low, high = self._bounds()
        t = self._positions(low.dtype)
        return ((t >= low[:, None]) & (t <= high[:, None]))[..., None]

    def connected(self) -> Array:
        """Which steps see the state before them."""
        valid = self.valid()
        return valid & (self.reset == 0)[..., None] if present(self.reset) else valid

    def empty(self) -> Array:
        """Which sequences have no steps, (N, 1)."""
        low, high = self._bounds()
        return (low > high)[:, None]

    def spread(self, states: Array) -> Array:
        """States of sequences, (N, D), at each of their steps."""
        return states[self._sequence()][None] if self.options.packed else states[:, None]

    def at_first(self, array: Array) -> Array:
        """Entries of an array over steps at each sequence's first step, (N, D)."""
        return self._at(self._ends()[0], array)

    def at_last(self, array: Array) -> Array:
        """Entries of an array over steps at each sequence's last step, (N, D)."""
        return self._at(self._ends()[1], array)

    def _at(self, positions: Array, array: Array) -> Array:
        batch, _, channels = array.shape
        array = jnp.broadcast_to(array, (batch, self.time, channels))
        t = jnp.clip(positions, 0, self.time - 1)
        return array[0, t] if batch == 1 else array[jnp.arange(batch), t]

    def previous(self, array: Array) -> Array:
        """Entries of an array at the step before; those at first steps mean nothing."""
        return jnp.roll(array, -1 if self.options.reverse else 1, axis=1)

    def next(self, array: Array) -> Array:
        """Entries of an array at the step after; those at last steps mean nothing."""
        return jnp.roll(array, 1 if self.options.reverse else -1, axis=1)


# ---- Batching ------------------------------------------------------------------------------------


def _example(x: Array, dim: int | None) -> tuple[int, ...]:
    """The shape of one example."""
    return x.shape if dim is None else x.shape[:dim] + x.shape[dim + 1 :]


def _merge(x: Array, dim: int | None, size: int, axis: int, target: int | None) -> Array:
    """Merge a batch axis into an axis of the operand, first broadcast to `target` if given."""
    x = jnp.broadcast_to(x, (size, *x.shape)) if dim is None else jnp.moveaxis(x, dim, 0)
    shape = list(x.shape)
    if target is not None:
        shape[axis + 1] = target
        x = jnp.broadcast_to(x, shape)
    del shape[0]
    shape[axis] *= size
    return jnp.moveaxis(x, 0, axis).reshape(shape)


def _unmerge(y: Array, size: int, axis: int, length: int, result: int) -> Array:
    """Undo `_merge`. An axis that was of size 1 in the operand is summed over."""
    y = y.reshape(*y.shape[:axis], size, length, *y.shape[axis + 1 :])
    return y if length == result else y.sum(axis + 1, keepdims=True)


def batch(
    call: Callable[..., Sequence[Array]],
    operands: Arrays,
    dims: Dims,
    roles: Sequence[str],
    result_roles: Sequence[str],
    options: Options,
    expand: Collection[int] = (),
) -> tuple[list[Array], list[int | None]]:
    """Batch a primitive by merging the new axis into B, or into D, or else by a loop.

    Packed sequences have no B. Operands without D (index and reset) or B (biases) rule that axis
    out if they are batched, and so do results (gradients of biases), which must stay apart.

    Args:
        call: binds the primitive.
        operands: the operands.
        dims: their batch axes, None where they have none.
        roles: their roles, see `Cell`; "" for one to leave out.
        result_roles: the results' roles, "" for absent ones.
        options: the call's options.
        expand: operands whose broadcast axes must be expanded, because they or the results that go
            with them (in the same place) differ between examples.
    """
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    operands, dims, roles = list(operands), list(dims), list(roles)
    shapes = []
    for i, (x, d) in enumerate(zip(operands, dims, strict=True)):
        shape = _example(x, d)
        if not roles[i] or shape == (0,):
            operands[i], dims[i], roles[i] = absent(), None, ""
        shapes.append(shape)
    whole = next(shape for shape, role in zip(shapes, roles, strict=True) if role == "btd")

    def merges(letter: str) -> bool:
        needed = [role for role, d in zip(roles, dims, strict=True) if d is not None]
        return all(letter in role.lower() for role in needed + [r for r in result_roles if r])

    letter = next((c for c in ("d" if options.packed else "bd") if merges(c)), None)
    if letter is None:
        return _loop(call, operands, dims, result_roles)

    length = whole["btd".index(letter)]
    merged = []
    for i, (x, d, role) in enumerate(zip(operands, dims, roles, strict=True)):
        axis = role.lower().find(letter)
        capital = axis >= 0 and role[axis].isupper()
        broadcast = capital and shapes[i][axis] == 1
        if axis >= 0 and not (broadcast and d is None and i not in expand):
            x = _merge(x, d, size, axis, length if broadcast else None)
        merged.append(x)
    results: list[Array] = []
    out: list[int | None] = []
    for i, (y, role) in enumerate(zip(call(*merged), result_roles, strict=True)):
        axis = role.lower().find(letter)
        if axis >= 0:
            y = _unmerge(y, size, axis, length, shapes[i][axis] if role[axis].isupper() else length)
        results.append(y)
        out.append(axis if axis >= 0 else None)
    return results, out


def _loop(
    call: Callable[..., Sequence[Array]], operands: Arrays, dims: Dims, result_roles: Sequence[str]
) -> tuple[list[Array], list[int | None]]:
    """Batch a primitive by one call an example."""

    def one(examples: Arrays) -> Sequence[Array]:
        rest = iter(examples)
        return call(*(x if d is None else next(rest) for x, d in zip(operands, dims, strict=True)))

    batched = [jnp.moveaxis(x, d, 0) for x, d in zip(operands, dims, strict=True) if d is not None]
    results = jax.lax.map(one, batched)
    there = [bool(role) for role in result_roles]
    return (
        [y if t else absent() for y, t in zip(results, there, strict=True)],
        [0 if t else None for t in there],
    )


# ---- The primitives ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Cell:
    """The primitives of a cell.

    Roles say which axes an operand has: "b" (N in a state of packed sequences), "t" and "d", in
    capitals where the size may be 1 and is broadcast. Residuals are like the inputs, one by one,
    and may be followed by what forward saved: its output ("btd") or its checkpoints ("").
    """

    name: str
    #: Roles of the inputs. The last input is the initial state.
    roles: tuple[str, ...]
    #: Roles of the residuals.
    residual_roles: tuple[str, ...]
    #: Which input (and residual) has the shape and dtype of h.
    main: int
    #: (inputs, results of forward) -> residuals.
    residuals: Callable[[Arrays, Arrays], Arrays]
    #: (residuals, directions, steps) -> (dh, dfinal).
    tangent: Callable[[Arrays, Arrays, Steps], Arrays]
    #: (residuals, cotangents of the results, steps, wanted) -> gradients.
    backward: Callable[[Arrays, Arrays, Steps, Sequence[bool]], Arrays]
    #: Its number in the core's table; None if it has handlers of its own.
    kind: int | None = None
    #: Roles of the results that have derivatives, "" for absent ones.
    result_roles: tuple[str, ...] = ("btd", "bd")

    #: The core's handlers of a cell with a number serve all of its family.
    family: ClassVar[str] = "cell"

    @property
    def has_checkpoints(self) -> bool:
        """Whether forward saves checkpoints for backward."""
        return not self.residual_roles[-1]

    def _attributes(self, options: Options) -> dict[str, Any]:
        """What the core's handlers get beside their operands."""
        attributes = asdict(options)
        own = {"options": attributes.pop("values"), "kind": self.kind}
        return attributes if self.kind is None else attributes | own

    def _lower(
        self,
        p: core.Primitive,
        avals_of: Callable[..., Sequence[Any]],
        doubles: Collection[int] = (),
    ) -> None:
        shared = p.name.replace(f"_{self.name}_", f"_{self.family}_")
        target = p.name if self.kind is None else shared
        _lower_to_core(p, avals_of, target, self._attributes, doubles)

    def seen_by_backward(self, results: Sequence[Any]) -> list[Any]:
        """Of what there is for every result: that of those whose cotangents `backward` takes."""
        return list(results)

    @property
    def _doubles(self) -> tuple[int, ...]:
        """The results of `forward` that the core writes in double precision."""
        return ()

    @functools.cached_property
    def forward_p(self) -> core.Primitive:
        p = _primitive(f"scanrnn_{self.name}_forward", self._forward_avals)
        self._lower(p, self._forward_avals, self._doubles)
        ad.primitive_jvps[p] = self._forward_jvp
        batching.primitive_batchers[p] = self._forward_batch
        return p

    @functools.cached_property
    def tangent_p(self) -> core.Primitive:
        p = _primitive(f"scanrnn_{self.name}_tangent", self._tangent_avals)
        mlir.register_lowering(p, mlir.lower_fun(self._compose_tangent, multiple_results=True))
        ad.primitive_jvps[p] = functools.partial(_jvp_of, self._compose_tangent)
        ad.primitive_transposes[p] = self._tangent_transpose
        batching.primitive_batchers[p] = self._tangent_batch
        return p

    @functools.cached_property
    def backward_p(self) -> core.Primitive:
        p = _primitive(f"scanrnn_{self.name}_backward", self._backward_avals)
        self._lower(p, self._backward_avals)
        ad.primitive_jvps[p] = functools.partial(_jvp_of, self._compose_backward)
        ad.primitive_transposes[p] = self._backward_transpose
        batching.primitive_batchers[p] = self._backward_batch
        return p

    def __call__(self, inputs: Arrays, index: Array, reset: Array, options: Options) -> list[Array]:
        """Bind `forward`: h and the final states."""
        return bind(self.forward_p, *inputs, index, reset, options=options, save=False)

    # What the results are

    def _shapes(
        self, main: Sequence[int], index: Sequence[int], options: Options
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """Shapes of the states and of the checkpoints, from those of two operands."""
        batch, time, channels = main
        sequences = index[0] - 1 if options.packed else batch
        rows = _core.checkpoint_rows(batch, time, sequences) if self.has_checkpoints else 0
        return (sequences, channels), (rows, channels)

    def _forward_avals(self, *avals: Any, options: Options, save: bool) -> list[Any]:
        results = self._tangent_avals(*avals, options=options)
        if save and self.has_checkpoints:
            main = avals[self.main]
            _, checkpoints = self._shapes(main.shape, avals[-2].shape, options)
            results.append(aval_like(main, checkpoints, ACCUMULATION[main.dtype]))
        return results

    def _tangent_avals(self, *avals: Any, options: Options) -> list[Any]:
        main = avals[self.main]
        states, _ = self._shapes(main.shape, avals[-2].shape, options)
        of_role = {
            "btd": (main.shape, main.dtype),
            "bd": (states, ACCUMULATION[main.dtype]),
            "": ((0,), main.dtype),
        }
        return [aval_like(main, *of_role[role]) for role in self.result_roles]

    def _backward_avals(self, *avals: Any, options: Options, wanted: tuple[bool, ...]) -> list[Any]:
        return [
            aval_like(x, x.shape if want else (0,), x.dtype)
            for x, want in zip(avals, wanted, strict=False)
        ]

    # Composed forms

    def _split(self, operands: Arrays, options: Options) -> tuple[Arrays, Arrays, Steps]:
        """Residuals, the operands after them, and the sequences."""
        *arrays, index, reset = operands
        count = len(self.residual_roles)
        batch, time, _ = arrays[self.main].shape
        return arrays[:count], arrays[count:], Steps(options, index, reset, batch, time)

    def _compose_tangent(self, *operands: Array, options: Options) -> list[Array]:
        return list(self.tangent(*self._split(operands, options)))

    def _compose_backward(
        self, *operands: Array, options: Options, wanted: tuple[bool, ...]
    ) -> list[Array]:
        return list(self.backward(*self._split(operands, options), wanted))

    # Differentiation

    def _forward_jvp(
        self, operands: Arrays, tangents: Sequence[Any], *, options: Options, save: bool
    ) -> tuple[list[Array], list[Any]]:
        *inputs, index, reset = operands
        results = bind(self.forward_p, *operands, options=options, save=True)
        residuals = self.residuals(inputs, results)
        directions = map(instantiate, tangents[: len(inputs)])
        out: list[Any] = [
            *bind(self.tangent_p, *residuals, *directions, index, reset, options=options)
        ]
        # The checkpoints only serve `backward`, whose derivatives don't go through them.
        n = len(out)
        results = results if save else results[:n]
        return results, out + [zero_tangent(x) for x in results[n:]]

    def _tangent_transpose(
        self, cotangents: Sequence[Any], *operands: Any, options: Options
    ) -> list[Any]:
        residuals, directions, steps = self._split(operands, options)
        wanted = tuple(map(is_linear, directions))
        grads = self.gradients(residuals, cotangents, steps, wanted)
        return [*(None for _ in residuals), *grads, None, None]

    def gradients(
        self, residuals: Arrays, cotangents: Sequence[Any], steps: Steps, wanted: tuple[bool, ...]
    ) -> list[Array | None]:
        """Gradients of the wanted inputs from cotangents of the results."""
        operands = (*residuals, *map(instantiate, cotangents), steps.index, steps.reset)
        grads = bind(self.backward_p, *operands, options=steps.options, wanted=wanted)
        return [grad if want else None for grad, want in zip(grads, wanted, strict=True)]

    def _backward_transpose(
        self,
        cotangents: Sequence[Any],
        *operands: Any,
        options: Options,
        wanted: tuple[bool, ...],
    ) -> list[Any]:
        residuals, linear, steps = self._split(operands, options)
        directions = [
            instantiate(ct) if want else absent()
            for ct, want in zip(cotangents, wanted, strict=True)
        ]
        operands = (*residuals, *directions, steps.index, steps.reset)
        out = bind(self.tangent_p, *operands, options=options)
        seen = self.seen_by_backward(out)
        grads = [y if is_linear(x) else None for x, y in zip(linear, seen, strict=True)]
        return [*(None for _ in residuals), *grads, None, None]

    # Batching

    def _forward_batch(
        self, operands: Arrays, dims: Dims, *, options: Options, save: bool
    ) -> tuple[list[Array], list[int | None]]:
        n = len(self.result_roles)

        def call(*merged: Array) -> list[Array]:
            return bind(self.forward_p, *merged, options=options, save=save)[:n]

        results, out = batch(
            call, operands, dims, (*self.roles, "b", "bt"), self.result_roles, options
        )
        if save and self.has_checkpoints:
            # Checkpoints of the merged call can't be told apart. These are a stand-in: the rules
            # below make new ones.
            main, index = (_example(operands[i], dims[i]) for i in (self.main, -2))
            _, checkpoints = self._shapes(main, index, options)
            results.append(jnp.zeros(checkpoints, results[1].dtype))
            out.append(None)
        return results, out

    def _checkpointed(self, *operands: Array, options: Options) -> Arrays:
        """Give operands of `tangent` and `backward` checkpoints again."""
        if not self.has_checkpoints:
            return operands
        residuals, rest, steps = self._split(operands, options)
        inputs = residuals[:-1]
        tail = (steps.index, steps.reset)
        results = bind(self.forward_p, *inputs, *tail, options=options, save=True)
        return (*self.residuals(inputs, results), *rest, *tail)

    def _tangent_batch(
        self, operands: Arrays, dims: Dims, *, options: Options
    ) -> tuple[list[Array], list[int | None]]:
        def call(*merged: Array) -> list[Array]:
            merged = tuple(self._checkpointed(*merged, options=options))
            return bind(self.tangent_p, *merged, options=options)

        n = len(self.residual_roles)
        # An input and its direction keep one shape, which is that of its gradient.
        pairs = [(i, n + i) for i in range(len(self.roles)) if present(operands[n + i])]
        expand = {i for pair in pairs if any(dims[j] is not None for j in pair) for i in pair}
        roles = (*self.residual_roles, *self.roles, "b", "bt")
        return batch(call, operands, dims, roles, self.result_roles, options, expand)

    def _backward_batch(
        self, operands: Arrays, dims: Dims, *, options: Options, wanted: tuple[bool, ...]
    ) -> tuple[list[Array], list[int | None]]:
        def call(*merged: Array) -> list[Array]:
            merged = tuple(self._checkpointed(*merged, options=options))
            return bind(self.backward_p, *merged, options=options, wanted=wanted)

        given = self.seen_by_backward(self.result_roles)
        roles = (*self.residual_roles, *given, "b", "bt")
        results = [role if want else "" for role, want in zip(self.roles, wanted, strict=True)]
        expand = {i for i, want in enumerate(wanted) if want}
        return batch(call, operands, dims, roles, results, options, expand)
