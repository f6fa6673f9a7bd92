"""The compiled core: every function works on array descriptors and writes into given outputs.

An array descriptor is ``(pointer, dtype code, shape, strides in elements, device)``, where device
-1 is the CPU and 0, 1, ... are CUDA ordinals. Strides may be anything, also 0 or negative. The
dtype codes are float16 0, bfloat16 1, float32 2, float64 3, complex64 4, complex128 5, int32 6,
int64 7 and uint8 8 (bool is passed as uint8).

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

def sru_forward(
    u: Descriptor,
    f: Descriptor,
    r: Descriptor,
    skip: Descriptor | None,
    bias_f: Descriptor | None,
    bias_r: Descriptor | None,
    c0: Descriptor | None,
    h: Descriptor,
    final: Descriptor | None,
    checkpoints: Descriptor | None,
    activation: int = 0,
    reverse: bool = False,
    cu_seqlens: Descriptor | None = None,
    lengths: Descriptor | None = None,
    reset: Descriptor | None = None,
    left_padded: bool = False,
    stream: int = 0,
    allocate: Allocate | None = None,
) -> None:
    """Write the fused SRU layer's output to h.

    With f'_t = sigmoid(f_t + bias_f) and r'_t = sigmoid(r_t + bias_r):
    c_t = f'_t c_{t-1} + (1 - f'_t) u_t and h_t = r'_t g(c_t) + (1 - r'_t) skip_t.

    Args:
        u: (B, T, D), a real dtype.
        f: (B, T, D) forget gate before bias and sigmoid, dtype of u.
        r: (B, T, D) reset (highway) gate before bias and sigmoid, dtype of u.
        skip: (B, T, D) highway input, dtype of u; None means zeros.
        bias_f: (D,) in the dtype of u or its accumulation dtype, or None.
        bias_r: (D,) likewise, or None.
        c0: (N, D) in the dtype of u or its accumulation dtype; None means zeros.
        h: (B, T, D) output, dtype of u.
        final: (N, D) output, last c of each sequence in the accumulation dtype, or None.
        checkpoints: (sru_checkpoint_rows(B, T, N), D) contiguous output in the accumulation dtype,
            the states that `sru_backward` restarts from, or None.
        activation: g, 0 identity, 1 tanh, 2 relu.
        reverse: as in `scan_forward`.
        cu_seqlens: as in `scan_forward`.
        lengths: as in `scan_forward`.
        reset: as in `scan_forward`.
        left_padded: as in `scan_forward`.
        stream: as in `scan_forward`.
        allocate: as in `scan_forward`.

    Raises:
        ValueError: a shape, a device, a stride or an offset is wrong.
        TypeError: a dtype is wrong.
        RuntimeError: as in `scan_forward`.
    """

def sru_checkpoint_rows(B: int, T: int, N: int) -> int:
    """Rows of the checkpoints array of `sru_forward` for B rows, T steps and N sequences."""

def sru_backward(
    u: Descriptor,
    f: Descriptor,
    r: Descriptor,
    skip: Descriptor | None,
    bias_f: Descriptor | None,
    bias_r: Descriptor | None,
    c0: Descriptor | None,
    checkpoints: Descriptor,
    dh: Descriptor | None,
    dfinal: Descriptor | None,
    du: Descriptor | None,
    df: Descriptor | None,
    dr: Descriptor | None,
    dskip: Descriptor | None,
    dbias_f: Descriptor | None,
    dbias_r: Descriptor | None,
    dc0: Descriptor | None,
    activation: int = 0,
    reverse: bool = False,
    cu_seqlens: Descriptor | None = None,
    lengths: Descriptor | None = None,
    reset: Descriptor | None = None,
    left_padded: bool = False,
    stream: int = 0,
    allocate: Allocate | None = None,
) -> None:
    """Write the gradients of `sru_forward`; states and gates are recomputed from checkpoints.

    Args:
        u: as in `sru_forward`, likewise f, r, skip, bias_f, bias_r and c0.
        f: see u.
        r: see u.
        skip: see u.
        bias_f: see u.
        bias_r: see u.
        c0: see u.
        checkpoints: what the forward call wrote.
        dh: (B, T, D) gradient with respect to h, dtype of u; None means zeros.
        dfinal: (N, D) gradient with respect to final, in the dtype of u or its accumulation dtype;
            None means zeros.
        du: (B, T, D) output, dtype of u, or None; likewise df, dr and dskip.
        df: see du.
        dr: see du.
        dskip: see du.
        dbias_f: (D,) output in the dtype of u or its accumulation dtype, or None; summed in a
            fixed order.
        dbias_r: likewise.
        dc0: (N, D) output in the dtype of u or its accumulation dtype, or None.
        activation: as in `sru_forward`, likewise all that follow.
        reverse: see activation.
        cu_seqlens: see activation.
        lengths: see activation.
        reset: see activation.
        left_padded: see activation.
        stream: see activation.
        allocate: see activation.

    Raises:
        ValueError: a shape, a device, a stride or an offset is wrong.
        TypeError: a dtype is wrong.
        RuntimeError: CUDA arrays, and the build has no CUDA backend or no kernel for the device's
            architecture, or CUDA reported an error.
    """

def merge_trace(
    a: Descriptor, x: Descriptor, h0: Descriptor | None, h: Descriptor, reverse: bool
) -> list[tuple[int, int, float, float]]:
    """Run `scan_forward` and report every merge level.

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
    activation: int,
    device: int,
) -> int:
    """Bytes of workspace that a call of an FFI target needs.

    Args:
        name: the target.
        operands: dtype code and shape of each, as XLA passes them.
        results: likewise, without the workspace.
        reverse: attribute of the call, likewise all that follow up to activation.
        packed: see reverse.
        left_padded: see reverse.
        order: see reverse.
        activation: see reverse.
        device: CUDA ordinal, or -1 for the CPU.

    Raises:
        ValueError: a shape is wrong.
        TypeError: a dtype is wrong.
        RuntimeError: there is no such device, or the build has no CUDA backend.
    """
