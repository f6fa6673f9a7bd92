"""The compiled core: every function works on array descriptors and writes into given outputs.

An array descriptor is ``(pointer, dtype code, shape, strides in elements, device)``, where device
-1 is the CPU and 0, 1, ... are CUDA ordinals. Strides may be anything, also 0 or negative. The
dtype codes are float16 0, bfloat16 1, float32 2, float64 3, complex64 4, complex128 5, int32 6,
int64 7 and uint8 8 (bool is passed as uint8). An array whose type has DLPack's exchange API
(``__dlpack_c_exchange_api__``: PyTorch's tensors, since 2.10) may stand for its descriptor; and so
may a part of it, a tuple ``(array, i)`` for array[i], ``(array, i, j)`` for array[i, j], or
``(array, None, i, n)`` for the i-th of n equal parts of its last axis.

The accumulation dtype of float16, bfloat16 and float32 is float32; other dtypes accumulate in
themselves. Every compute function releases the GIL, allocates nothing that outlives the call, and
checks all of its arguments before it writes anything: ValueError and TypeError name the argument,
what was given and what was expected. On CUDA a call only enqueues its work on the given stream, and
the values of index arrays are not checked, which would wait for the device.

The descriptors do not own memory: the caller keeps the arrays alive during a call (a CUDA array:
until the stream has done the work, for which a stream-ordered allocator suffices).
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypedDict

Descriptor: TypeAlias = tuple[int, int, tuple[int, ...], tuple[int, ...], int]
#: (bytes, CUDA ordinal) -> (pointer, owner): lends device memory until the owner is dropped, which
#: is when the call returns. Not called for calls that need none, nor on the CPU.
Allocate: TypeAlias = Callable[[int, int], tuple[int, object]]

class BuildInfo(TypedDict):
    """What `build_info` returns."""

    version: str
    cuda: bool
    cuda_architectures: str
    debug_merge: bool
    compiler: str
    isas: list[str]
    leaf_steps: int
    xla_ffi: bool

def scan_forward(
    a: Descriptor,
    x: Descriptor,
    h0: Descriptor | None,
    h: Descriptor,
    final: Descriptor | None,
    reverse: bool = False,
    cu_seqlens: Descriptor | None = None,
    lengths: Descriptor | None = None,
    reset: Descriptor | None = None,
    left_padded: bool = False,
    stream: int = 0,
    allocate: Allocate | None = None,
) -> None:
    """Write h_t = a_t h_{t-1} + x_t to h, and the last state of each sequence to final.

    Args:
        a: (B or 1, T or 1, D or 1), dtype of x; axes of size 1 are broadcast.
        x: (B, T, D).
        h0: (N, D) in the dtype of x or its accumulation dtype; None means zeros. N is B, or the
            number of packed sequences.
        h: (B, T, D) output, dtype of x.
        final: (N, D) output in the accumulation dtype, or None.
        reverse: h_t = a_t h_{t+1} + x_t, from the end of each sequence.
        cu_seqlens: (N + 1,) int32 or int64 offsets of packed sequences; B must be 1.
        lengths: (B,) int32 or int64 numbers of valid steps; h is 0 outside of them.
        reset: (B, T) uint8; nonzero drops the state that enters this step.
        left_padded: the valid steps are the last lengths[b] ones.
        stream: CUDA stream as an integer, 0 for the legacy default stream.
        allocate: lends the workspace of a CUDA call, 16-byte aligned and not cleared.

    Raises:
        ValueError: a shape, a device, a stride or an offset is wrong.
        TypeError: a dtype is wrong.
        RuntimeError: CUDA arrays, and the build has no CUDA backend or no kernel for the device's
            architecture, or CUDA reported an error.
    """

def scan_backward(
    a: Descriptor,
    h: Descriptor,
    h0: Descriptor | None,
    dh: Descriptor | None,
    dfinal: Descriptor | None,
    da: Descriptor | None,
    dx: Descriptor | None,
    dh0: Descriptor | None,
    reverse: bool = False,
    cu_seqlens: Descriptor | None = None,
    lengths: Descriptor | None = None,
    reset: Descriptor | None = None,
    left_padded: bool = False,
    conj: bool = True,
    stream: int = 0,
    allocate: Allocate | None = None,
) -> None:
    """Write the gradients of `scan_forward`, from its output h.

    Args:
        a: as in `scan_forward`.
        h: (B, T, D) output of the forward call.
        h0: as in `scan_forward`.
        dh: (B, T, D) gradient with respect to h, dtype of h; None means zeros.
        dfinal: (N, D) gradient with respect to final, in the dtype of h or its accumulation dtype;
            None means zeros.
        da: output of a's shape and dtype, summed over the axes of size 1, or None.
        dx: (B, T, D) output, dtype of h, or None.
        dh0: (N, D) output in the dtype of h or its accumulation dtype, or None.
        reverse: as in `scan_forward`.
        cu_seqlens: as in `scan_forward`.
        lengths: as in `scan_forward`; da and dx are 0 outside of the valid steps.
        reset: as in `scan_forward`; no gradient passes a reset.
        left_padded: as in `scan_forward`.
        conj: complex gradients in PyTorch's convention (a and h conjugated), else in JAX's.
        stream: as in `scan_forward`.
        allocate: as in `scan_forward`.

    Raises:
        ValueError: a shape, a device, a stride or an offset is wrong.
        TypeError: a dtype is wrong.
        RuntimeError: as in `scan_forward`.
    """

class CellInput(TypedDict):
    """One of a cell's inputs, in `CellRow`."""

    name: str
    optional: bool
    vector: bool

class CellOption(TypedDict):
    """One of a cell's options, in `CellRow`."""

    name: str
    default: float
    most: float

class NonlinearCellRow(TypedDict):
    """A cell, as `nonlinear_cell_table` lists it."""

    kind: int
    name: str
    inputs: list[CellInput]
    options: list[CellOption]
    states: list[str]
    output_state: int
    kept_state: int

class CellRow(TypedDict):
    """A cell, as `cell_table` lists it."""

    kind: int
    name: str
    inputs: list[CellInput]
    state: str
    state_is_output: bool
    options: list[CellOption]

def cell_table() -> list[CellRow]:
    """The fused cells: what `cell_forward` and `cell_backward` take for each.

    Inputs are (B, T, D), vectors (D,). The first is never a vector and never optional. The state is
    called "h" or "c", and its initial value "h0" or "c0".
    """

def checkpoint_rows(batch: int, time: int, sequences: int) -> int:
    """Rows of the checkpoints array of `cell_forward`."""

def cell_forward(
    kind: int,
    inputs: Sequence[Descriptor | None],
    c0: Descriptor | None,
    out: Descriptor,
    final: Descriptor | None,
    checkpoints: Descriptor | None,
    options: Sequence[float] = (),
    reverse: bool = False,
    cu_seqlens: Descriptor | None = None,
    lengths: Descriptor | None = None,
    reset: Descriptor | None = None,
    left_padded: bool = False,
    stream: int = 0,
    allocate: Allocate | None = None,
) -> None:
    """Write a fused cell's outputs to out.

    Args:
        kind: the cell, as in `cell_table`.
        inputs: one for each of the cell's inputs, in the table's order: (B, T, D) in one real
            dtype, vectors (D,) in that dtype or its accumulation dtype. None means zeros (for
            qrnn's i, 1 - f), where the input is optional.
        c0: (N, D) in the dtype of the inputs or its accumulation dtype; None means zeros.
        out: (B, T, D) output, dtype of the inputs.
        final: (N, D) output, the last state of each sequence in the accumulation dtype, or None.
        checkpoints: (checkpoint_rows(B, T, N), D) contiguous output in the accumulation dtype, the
            states that `cell_backward` restarts from, or None; None where the state is the output.
        options: values of the cell's options in the table's order; the rest have their defaults.
            Activations: 0 identity, 1 tanh, 2 relu, 3 silu, 4 sigmoid, 5 positive.
        reverse: as in `scan_forward`.
        cu_seqlens: as in `scan_forward`.
        lengths: as in `scan_forward`.
        reset: as in `scan_forward`.
        left_padded: as in `scan_forward`.
        stream: as in `scan_forward`.
        allocate: as in `scan_forward`.

    Raises:
        ValueError: the kind, an option, a shape, a device, a stride or an offset is wrong.
        TypeError: a dtype is wrong.
        RuntimeError: as in `scan_forward`.
    """

def cell_backward(
    kind: int,
    inputs: Sequence[Descriptor | None],
    c0: Descriptor | None,
    saved: Descriptor,
    dy: Descriptor | None,
    dfinal: Descriptor | None,
    dinputs: Sequence[Descriptor | None],
    dc0: Descriptor | None,
    options: Sequence[float] = (),
    reverse: bool = False,
    cu_seqlens: Descriptor | None = None,
    lengths: Descriptor | None = None,
    reset: Descriptor | None = None,
    left_padded: bool = False,
    stream: int = 0,
    allocate: Allocate | None = None,
) -> None:
    """Write the gradients of `cell_forward`; gates are recomputed.

    Args:
        kind: as in `cell_forward`, likewise inputs and c0.
        inputs: see kind.
        c0: see kind.
        saved: out of the forward call where the state is the output, else its checkpoints.
        dy: (B, T, D) gradient with respect to out, dtype of the inputs; None means zeros.
        dfinal: (N, D) gradient with respect to final, in the dtype of the inputs or its
            accumulation dtype; None means zeros.
        dinputs: an output for each input, of its shape, or None: (B, T, D) in the dtype of the
            inputs; (D,) in that or its accumulation dtype, summed in a fixed order.
        dc0: (N, D) output in the dtype of the inputs or its accumulation dtype, or None.
        options: as in `cell_forward`, likewise all that follow.
        reverse: see options.
        cu_seqlens: see options.
        lengths: see options.
        reset: see options.
        left_padded: see options.
        stream: see options.
        allocate: see options.

    Raises:
        ValueError: the kind, an option, a shape, a device, a stride or an offset is wrong.
        TypeError: a dtype is wrong.
        RuntimeError: as in `scan_forward`.
    """

def nonlinear_cell_table() -> list[NonlinearCellRow]:
    """The nonlinear cells: what `solve_forward` and `solve_backward` take for each.

    Inputs are as in `cell_table`. A cell has one or two states, "h" or "c"; their initial values
    are "h0" and "c0". The output is the state of number output_state, or none of them (-1);
    kept_state is the number of the one that forward writes to kept for backward, or -1.
    """

def solve_forward(
    kind: int,
    inputs: Sequence[Descriptor | None],
    initial: Sequence[Descriptor | None],
    out: Descriptor,
    kept: Descriptor | None,
    final: Sequence[Descriptor | None],
    report: Descriptor | None,
    options: Sequence[float] = (),
    tolerance: float = 0.0,
    max_passes: int = 8,
    segment: int = 0,
    reverse: bool = False,
    cu_seqlens: Descriptor | None = None,
    lengths: Descriptor | None = None,
    reset: Descriptor | None = None,
    left_padded: bool = False,
    stream: int = 0,
    allocate: Allocate | None = None,
) -> None:
    """Write a nonlinear cell's outputs to out.

    Args:
        kind: the cell, as in `nonlinear_cell_table`.
        inputs: one for each of the cell's inputs, in the table's order: (B, T, D) in one real
            dtype, vectors (D,) in that dtype or its accumulation dtype. None means zeros (for
            diagonal_lstm's i, 1 - f), where the input is optional.
        initial: one for each of the cell's states, (N, D) in the dtype of the inputs or its
            accumulation dtype; None means zeros.
        out: (B, T, D) output, dtype of the inputs.
        kept: (B, T, D) output, dtype of the inputs, the states that `solve_backward` reads beside
            out, or None; not written where the cell keeps none.
        final: one for each state, (N, D) output, the last state of each sequence in the
            accumulation dtype, or None.
        report: (N, 6) contiguous float64 output, or None. Columns: status (0 converged, 1 fell
            back, 2 serial), passes, residual, error estimate, the first step (in the order of the
            pass) that was run serially after all, or -1, and the number of channels with one.
        options: as in `cell_forward`.
        tolerance: a segment's start is at rest once it moves by no more than this times
            max(1, its size); 0: 1e-6, for float64 1e-13.
        max_passes: runs of the segments before the rest is run serially; 0: serial at once.
        segment: steps of a segment; 0: chosen from T and D.
        reverse: as in `scan_forward`.
        cu_seqlens: as in `scan_forward`.
        lengths: as in `scan_forward`.
        reset: as in `scan_forward`.
        left_padded: as in `scan_forward`.
        stream: as in `scan_forward`.
        allocate: as in `scan_forward`.

    Raises:
        ValueError: the kind, an option, a shape, a device, a stride or an offset is wrong.
        TypeError: a dtype is wrong.
        RuntimeError: as in `scan_forward`.
    """

def solve_backward(
    kind: int,
    inputs: Sequence[Descriptor | None],
    initial: Sequence[Descriptor | None],
    out: Descriptor | None,
    kept: Descriptor | None,
    dy: Descriptor | None,
    dfinal: Sequence[Descriptor | None],
    dinputs: Sequence[Descriptor | None],
    dinitial: Sequence[Descriptor | None],
    options: Sequence[float] = (),
    reverse: bool = False,
    cu_seqlens: Descriptor | None = None,
    lengths: Descriptor | None = None,
    reset: Descriptor | None = None,
    left_padded: bool = False,
    stream: int = 0,
    allocate: Allocate | None = None,
    dsums: Sequence[Descriptor | None] | None = None,
) -> None:
    """Write the gradients of `solve_forward`, exact at the states that it wrote.

    Args:
        kind: as in `solve_forward`, likewise inputs and initial.
        inputs: see kind.
        initial: see kind.
        out: what forward wrote, where that is a state, else None.
        kept: what forward wrote, where the cell keeps a state, else None.
        dy: (B, T, D) gradient with respect to out, dtype of the inputs; None means zeros.
        dfinal: one for each state, (N, D) gradient with respect to final, in the dtype of the
            inputs or its accumulation dtype; None means zeros.
        dinputs: an output for each input, of its shape, or None: (B, T, D) in the dtype of the
            inputs; (D,) in that or its accumulation dtype, summed in a fixed order.
        dinitial: one for each state, (N, D) output in the dtype of the inputs or its accumulation
            dtype, or None.
        options: as in `solve_forward`, likewise all that follow up to allocate.
        reverse: see options.
        cu_seqlens: see options.
        lengths: see options.
        reset: see options.
        left_padded: see options.
        stream: see options.
        allocate: see options.
        dsums: an output for each input, None for those that are (D,): (D,) in the dtype of the
            inputs or its accumulation dtype, the input's gradient summed over sequences and steps,
            which is that of a bias that was added to it; or None.

    Raises:
        ValueError: the kind, an option, a shape, a device, a stride or an offset is wrong.
        TypeError: a dtype is wrong.
        RuntimeError: as in `scan_forward`.
    """

def merge_trace(
    a: Descriptor,
    x: Descriptor,
    h0: Descriptor | None,
    h: Descriptor,
    reverse: bool = False,
    stream: int = 0,
) -> list[tuple[int, int, float, float]]:
    """Run `scan_forward`, wait for it and report every merge level.

    Returns:
        One tuple a level: (level, merges, largest |state after - state before|, largest difference
        from the serial float64 state at the same step).

    Raises:
        RuntimeError: the core was built without DEBUG_MERGE.
    """

def set_num_threads(n: int) -> None:
    """Use at most n CPU threads a call; results do not depend on it. ValueError for n < 1."""

def get_num_threads() -> int:
    """The largest number of CPU threads that a call may use."""

def cpu_isa() -> str:
    """The instruction set in use: "avx512", "avx2", "sse2", "neon" or "generic"."""

def set_cpu_isa(name: str) -> None:
    """Use another instruction set, for tests; SCANRNN_CPU_ISA sets it too.

    Raises:
        ValueError: the build or the processor does not have it.
    """

def build_info() -> BuildInfo:
    """How the core was built."""

def cuda_available() -> bool:
    """Whether the build has a CUDA backend and a device is there."""

def cuda_unavailable_reason() -> str:
    """Why `cuda_available` is False; empty if it is True."""

def from_dlpack(obj: Any) -> tuple[Descriptor, object]:
    """Describe a DLPack producer's or capsule's memory, without a copy.

    Args:
        obj: an object with ``__dlpack__``, or a capsule of DLPack 0 or 1.

    Returns:
        The descriptor, and the owner to keep alive while the descriptor is in use.

    Raises:
        TypeError: obj is neither, its dtype has no code, or its dtype has more than one lane.
    """

#: Major and minor version of XLA's interface for handlers that these were compiled with; (0, 0)
#: without XLA's headers.
ffi_version: tuple[int, int]

def ffi_targets(platform: str = "cpu") -> dict[str, Any]:
    """XLA FFI handlers by target name, as capsules; empty when built without XLA's headers.

    Args:
        platform: "cpu" or "CUDA". The handlers for CUDA take one more result, a uint8 buffer that
            is the call's workspace.

    Raises:
        ValueError: there is no such platform.
    """

def ffi_workspace_bytes(
    name: str,
    operands: Sequence[tuple[int, Sequence[int]]],
    results: Sequence[tuple[int, Sequence[int]]],
    reverse: bool,
    packed: bool,
    left_padded: bool,
    order: int,
    kind: int = 0,
    options: Sequence[float] = (),
    tolerance: float = 0.0,
    max_passes: int = 8,
    segment: int = 0,
    device: int = -1,
) -> int:
    """Bytes of workspace that a call of an FFI target needs.

    Args:
        name: the target.
        operands: dtype code and shape of each, as XLA passes them.
        results: likewise, without the workspace.
        reverse: attribute of the call, likewise all that follow up to segment.
        packed: see reverse.
        left_padded: see reverse.
        order: see reverse.
        kind: see reverse; of cells only.
        options: see reverse; of cells only.
        tolerance: see reverse; of `solve_forward` only.
        max_passes: see tolerance.
        segment: see tolerance.
        device: CUDA ordinal, or -1 for the CPU.

    Raises:
        ValueError: a shape is wrong.
        TypeError: a dtype is wrong.
        RuntimeError: there is no such device, or the build has no CUDA backend.
    """
