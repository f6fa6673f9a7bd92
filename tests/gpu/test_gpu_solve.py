"""Nonlinear cells on the device, through the core: against loops in double precision, and what only
CUDA has: graphs, streams, and the same bits whatever else runs."""

# ruff: noqa: E402
import itertools
import math

import pytest

torch = pytest.importorskip("torch")

from gpu_helpers import LAYOUTS
from scanrnn import _core
from torch import sigmoid, tanh

CODES = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2, torch.float64: 3}
CODES |= {torch.int32: 6, torch.int64: 7, torch.bool: 8, torch.uint8: 8}
TABLE = {row["name"]: row for row in _core.nonlinear_cell_table()}
#: Error of outputs and gradients in units of max(1, size); sums of many steps get 30 times as much.
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 3e-5, torch.float64: 1e-10}
STATUS, PASSES, RESIDUAL, _, FIRST, SERIAL = range(6)


# The papers' equations: (inputs, states) to (output, states)


def gru(v, h):
    r = sigmoid(v["r"] + v["u_r"] * h)
    z = sigmoid(v["z"] + v["u_z"] * h)
    n = tanh(v["n"] + r * (v["u_n"] * h + v.get("b_n", 0)))
    h = (1 - z) * n + z * h
    return h, (h,)


def lstm(v, h, c):
    f = sigmoid(v["f"] + v["u_f"] * h + v.get("w_f", 0) * c)
    i = 1 - f
    if "i" in v:
        i = sigmoid(v["i"] + v.get("u_i", 0) * h + v.get("w_i", 0) * c)
    c = f * c + i * tanh(v["g"] + v["u_g"] * h)
    h = sigmoid(v["o"] + v["u_o"] * h + v.get("w_o", 0) * c) * tanh(c)
    return h, (h, c)


def indrnn(v, h):
    h = tanh(v["p"] + v["u"] * h)
    return h, (h,)


def sru(v, c):
    f = sigmoid(v["f"] + v["v_f"] * c + v.get("bias_f", 0))
    r = sigmoid(v["r"] + v["v_r"] * c + v.get("bias_r", 0))
    c = f * c + (1 - f) * v["u"]
    return r * c + (1 - r) * v.get("skip", 0), (c,)


#: Options: tanh for indrnn, none for recurrent_sru.
ACTIVATION = {"indrnn": [1.0], "recurrent_sru": [0.0]}
STEPS = {"diagonal_gru": gru, "diagonal_lstm": lstm, "indrnn": indrnn, "recurrent_sru": sru}
OPTIONAL = {
    name: [i["name"] for i in row["inputs"] if i["optional"]] for name, row in TABLE.items()
}
by_cell = pytest.mark.parametrize("name", STEPS)


def descriptor(t):
    if t is None:
        return None
    return t.data_ptr(), CODES[t.dtype], tuple(t.shape), t.stride(), t.device.index or 0


def allocate(size, _device):
    memory = torch.empty(size, dtype=torch.uint8, device="cuda")
    return memory.data_ptr(), memory


class Problem:
    """Inputs of a cell, and its outputs and gradients."""

    def __init__(
        self, name, b=2, t=600, d=40, dtype=torch.float32, gain=1.0, bias=0.0, *,
        absent=(), layout="btd", sequences=None, initial=True, seed=0, **options,
    ):  # fmt: skip
        generator = torch.Generator().manual_seed(seed)
        self.name, self.dtype, self.options = name, dtype, options
        self.wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.inputs = {}
        for k, row in enumerate(TABLE[name]["inputs"]):
            if row["name"] in absent:
                continue
            shape = (d,) if row["vector"] else (b, t, d)
            value = torch.randn(shape, generator=generator, dtype=torch.float64)
            value = value * gain if row["vector"] else value + (bias if k <= 1 else 0)
            value = value.to(dtype).to("cuda")
            self.inputs[row["name"]] = value if row["vector"] else LAYOUTS[layout](value)
        self.n = b if sequences is None else sequences
        states = len(TABLE[name]["states"])
        rand = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
        self.initial = [
            rand(self.n, d).tanh().to(dtype).cuda() if initial else None for _ in range(states)
        ]
        self.dy = LAYOUTS[layout](rand(b, t, d).to(dtype).cuda())
        self.dfinal = [rand(self.n, d).to(self.wide).cuda() for _ in range(states)]
        like = next(iter(self.inputs.values()))
        self.out, self.kept = torch.full_like(like, 9), torch.full_like(like, 9)
        self.final = [torch.full_like(f, 9) for f in self.dfinal]
        self.report = torch.full((self.n, 6), -9, dtype=torch.float64, device="cuda")
        self.dinputs = {k: torch.full_like(v, 9) for k, v in self.inputs.items()}
        self.dinitial = [torch.full_like(f, 9) for f in self.dfinal]
        self.row = TABLE[name]

    def _layout(self):
        keys = ("reverse", "cu_seqlens", "lengths", "reset", "left_padded")
        chosen = {k: self.options[k] for k in keys if k in self.options}
        return {k: descriptor(v.cuda()) if torch.is_tensor(v) else v for k, v in self._hold(chosen)}

    def _hold(self, chosen):
        # Descriptors don't keep tensors alive.
        self.held = {k: v.cuda() if torch.is_tensor(v) else v for k, v in chosen.items()}
        return self.held.items()

    def forward(self, allocate=allocate):
        solve = {
            k: self.options[k] for k in ("max_passes", "segment", "tolerance") if k in self.options
        }
        _core.solve_forward(
            self.row["kind"], [descriptor(self.inputs.get(i["name"])) for i in self.row["inputs"]],
            [descriptor(s) for s in self.initial], descriptor(self.out), descriptor(self.kept),
            [descriptor(f) for f in self.final], descriptor(self.report), **solve, **self._layout(),
            options=ACTIVATION.get(self.name, []),
            stream=torch.cuda.current_stream().cuda_stream, allocate=allocate,
        )  # fmt: skip
        return self

    def backward(self, allocate=allocate):
        row = self.row
        _core.solve_backward(
            row["kind"], [descriptor(self.inputs.get(i["name"])) for i in row["inputs"]],
            [descriptor(s) for s in self.initial],
            descriptor(self.out) if row["output_state"] >= 0 else None,
            descriptor(self.kept) if row["kept_state"] >= 0 else None,
            descriptor(self.dy), [descriptor(f) for f in self.dfinal],
            [descriptor(self.dinputs.get(i["name"])) for i in row["inputs"]],
            [descriptor(f) for f in self.dinitial], **self._layout(),
            options=ACTIVATION.get(self.name, []),
            stream=torch.cuda.current_stream().cuda_stream, allocate=allocate,
        )  # fmt: skip
        return self

    def results(self):
        kept = [self.kept] if self.row["kept_state"] >= 0 else []
        return [self.out, *kept, *self.final, *self.dinputs.values(), *self.dinitial, self.report]

    def spans(self):
        """Sequences: (row, first step, end)."""
        b, t = self.out.shape[:2]
        if "cu_seqlens" in self.options:
            return [(0, *ends) for ends in itertools.pairwise(self.options["cu_seqlens"].tolist())]
        if "lengths" not in self.options:
            return [(row, 0, t) for row in range(b)]
        spans = []
        for row, length in enumerate(self.options["lengths"].tolist()):
            spans.append(
                (row, t - length, t) if self.options.get("left_padded") else (row, 0, length)
            )
        return spans

    def loop(self):
        """The equations in double precision, and their gradients by autograd."""
        inputs = {k: v.detach().double().cpu().requires_grad_() for k, v in self.inputs.items()}
        vectors = {r["name"] for r in self.row["inputs"] if r["vector"]}
        initial = [
            torch.zeros_like(f, dtype=torch.float64, device="cpu") if s is None
            else s.double().cpu() for s, f in zip(self.initial, self.final, strict=True)
        ]  # fmt: skip
        initial = [s.requires_grad_() for s in initial]
        out = torch.zeros(self.out.shape, dtype=torch.float64)
        reset, rows, finals = self.options.get("reset"), [], []
        for n, (row, begin, end) in enumerate(self.spans()):
            states, steps = tuple(s[n] for s in initial), range(begin, end)
            for t in reversed(steps) if self.options.get("reverse") else steps:
                if reset is not None and reset[row, t]:
                    states = tuple(torch.zeros_like(s) for s in states)
                values = {k: v if k in vectors else v[row, t] for k, v in inputs.items()}
                y, states = STEPS[self.name](values, *states)
                rows.append((row, t, y))
            finals.append(states)
        out = torch.zeros(self.out.shape, dtype=torch.float64)
        if rows:
            at = torch.tensor([(b, t) for b, t, _ in rows])
            out = out.index_put((at[:, 0], at[:, 1]), torch.stack([y for *_, y in rows]))
        final = [torch.stack(states) for states in zip(*finals, strict=True)]
        seeds = [self.dy.double().cpu(), *(f.double().cpu() for f in self.dfinal)]
        leaves = [*inputs.values(), *initial]
        gradients = torch.autograd.grad([out, *final], leaves, seeds, allow_unused=True)
        gradients = [
            torch.zeros_like(v) if g is None else g for g, v in zip(gradients, leaves, strict=True)
        ]
        return out, final, dict(zip(inputs, gradients, strict=False)), gradients[len(inputs) :]

    def check(self):
        torch.cuda.synchronize()
        out, final, dinputs, dinitial = self.loop()
        limit = TOLERANCE[self.dtype]
        assert_near(self.out, out, limit, "out")
        for k, (given, expected) in enumerate(zip(self.final, final, strict=True)):
            assert_near(given, expected, limit, f"final {k}")
        # Gradients follow the states as they were stored.
        for k, given in self.dinputs.items():
            assert_near(given, dinputs[k], limit * (60 if given.ndim == 1 else 4), f"d{k}")
        for k, (given, expected) in enumerate(zip(self.dinitial, dinitial, strict=True)):
            assert_near(given, expected, limit * 8, f"dinitial {k}")


def assert_near(given, expected, limit, what):
    given, expected = given.detach().double().cpu(), expected.detach()
    error = (
        ((given - expected).abs() / expected.abs().clamp(min=1)).max().item()
        if given.numel()
        else 0
    )
    assert error <= limit, f"{what}: off by {error:.2e}"


T, ENDS = 600, [0, 3, 4, 4, 340, 470, 600, 600]
FLAGS = torch.arange(3 * T).view(3, T) % 67 == 11
VARIANTS = {
    "plain": {},
    "reverse": {"reverse": True},
    "lengths": {"b": 3, "lengths": torch.tensor([600, 0, 517])},
    "left-reverse-reset": {"b": 3, "lengths": torch.tensor([0, 590, 600]), "left_padded": True}
    | {"reverse": True, "reset": FLAGS},
    "packed": {"b": 1, "cu_seqlens": torch.tensor(ENDS), "sequences": len(ENDS) - 1},
    "packed-reverse-reset": {"b": 1, "cu_seqlens": torch.tensor(ENDS, dtype=torch.int32)}
    | {"sequences": len(ENDS) - 1, "reset": FLAGS[:1], "reverse": True},
    "segment-50": {"segment": 50, "initial": False},
    "serial": {"max_passes": 0},
}


@by_cell
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_results_are_those_of_the_loop(cuda, name, dtype, variant):
    problem = Problem(name, t=T, dtype=dtype, gain=0.5, **VARIANTS[variant])
    problem.forward().backward().check()
    statuses = set(problem.report[:, STATUS].tolist())
    assert statuses <= ({2} if variant == "serial" else {0, 2})
    assert problem.report[:, RESIDUAL].max() <= 1e-4


@by_cell
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(cuda, name, layout):
    Problem(name, t=300, d=33, gain=0.5, layout=layout, segment=64).forward().backward().check()


@by_cell
@pytest.mark.parametrize("d", [1, 2, 7, 31, 33, 64])
def test_channels(cuda, name, d):
    Problem(
        name, t=400, d=d, gain=0.5, absent=OPTIONAL[name], segment=32
    ).forward().backward().check()


@by_cell
def test_bits_depend_on_nothing_else(cuda, name):
    """Not on the run, the stream, or the other rows."""
    first = Problem(name, b=5, t=3000, d=96, bias=2).forward().backward()
    expected = [r.clone() for r in first.results()]
    for _ in range(10):
        first.forward().backward()
        assert all(torch.equal(a, b) for a, b in zip(first.results(), expected, strict=True))
    alone = Problem(name, b=1, t=3000, d=96, bias=2)
    for k, v in alone.inputs.items():
        v.copy_(first.inputs[k] if v.ndim == 1 else first.inputs[k][3:4])
    alone.dy.copy_(first.dy[3:4])
    alone.initial = [s[3:4] for s in first.initial]
    alone.dfinal = [s[3:4] for s in first.dfinal]
    alone.forward().backward()
    assert torch.equal(alone.out, first.out[3:4])
    assert torch.equal(alone.report, first.report[3:4])
    for k, v in alone.dinputs.items():
        if v.ndim == 3:
            assert torch.equal(v, first.dinputs[k][3:4])
    for a, b in zip(alone.final + alone.dinitial, first.final + first.dinitial, strict=True):
        assert torch.equal(a, b[3:4])


@by_cell
def test_long_memory_converges_to_the_serial_run(cuda, name):
    """Gates that hold the state for hundreds of steps take more passes, and give the same."""
    bias = 0 if name == "indrnn" else 4
    problem = Problem(name, b=1, t=20000, d=64, gain=0.3, bias=bias, segment=128).forward()
    serial = Problem(name, b=1, t=20000, d=64, gain=0.3, bias=bias, max_passes=0).forward()
    assert_near(problem.out, serial.out.double().cpu(), 2e-4, "out")
    assert (problem.report[:, PASSES] <= 8).all()
    assert (serial.report[:, STATUS] == 2).all()


@pytest.mark.parametrize("name", ["diagonal_gru", "diagonal_lstm"])
def test_chaos_falls_back(cuda, name):
    """Every step holds to rounding, whatever the path; and the report says that it is serial."""
    p = Problem(name, b=2, t=4000, d=64, gain=8, dtype=torch.float64, initial=False).forward()
    assert (p.report[:, STATUS] == 1).all()
    assert (p.report[:, SERIAL] > 0).all()
    first = p.report[:, FIRST]
    assert ((first > 0) & (first % 128 == 0)).all()
    states = [p.out] if name == "diagonal_gru" else [p.out, p.kept]
    before = [torch.cat([torch.zeros_like(s[:, :1]), s[:, :-1]], 1) for s in states]
    y, after = STEPS[name](p.inputs, *before)
    # At a boundary the state moves by the tolerance, times what the step makes of it.
    assert_near(p.out, y.cpu(), 1e-8, "out")
    assert_near(states[-1], after[-1].cpu(), 1e-8, "state")


@by_cell
def test_nan_stays_in_its_channel(cuda, name):
    clean = Problem(name, b=2, t=2000, d=40, gain=0.5).forward().backward()
    dirty = Problem(name, b=2, t=2000, d=40, gain=0.5)
    next(iter(dirty.inputs.values()))[1, 700, 5] = math.nan
    dirty.forward().backward()
    same = torch.ones(2, 2000, 40, dtype=torch.bool, device="cuda")
    same[1, 700:, 5] = False
    assert torch.equal(dirty.out[same], clean.out[same])
    assert dirty.out[1, 700:, 5].isnan().all()
    same[1, :, 5] = False
    for k, v in dirty.dinputs.items():
        if v.ndim == 3:
            assert torch.equal(v[same], clean.dinputs[k][same])


@by_cell
def test_graphs(cuda, name):
    """A captured call runs again on other values, as many passes as those need."""
    problem = Problem(name, b=2, t=3000, d=64)
    problem.forward().backward()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        problem.forward().backward()
    for seed, bias in ((1, 0), (2, 3), (3, 0)):
        other = Problem(name, b=2, t=3000, d=64, seed=seed, bias=bias).forward().backward()
        for k, v in other.inputs.items():
            problem.inputs[k].copy_(v)
        for to, values in zip([problem.dy, *problem.initial, *problem.dfinal],
                              [other.dy, *other.initial, *other.dfinal], strict=True):  # fmt: skip
            to.copy_(values)
        graph.replay()
        torch.cuda.synchronize()
        assert all(
            torch.equal(a, b) for a, b in zip(problem.results(), other.results(), strict=True)
        )


@by_cell
def test_streams(cuda, name):
    """Calls are ordered by their stream, and several streams at once don't meet."""
    expected = [Problem(name, t=3000, d=64, seed=s).forward().backward() for s in range(3)]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(3)]
    given = [Problem(name, t=3000, d=64, seed=s) for s in range(3)]
    torch.cuda.synchronize()
    for p, stream in zip(given, streams, strict=True):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000)
            for v in p.inputs.values():
                v.mul_(2).mul_(0.5)
            p.forward().backward()
    torch.cuda.synchronize()
    for p, q in zip(given, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(p.results(), q.results(), strict=True))


@by_cell
def test_extents_of_nothing(cuda, name):
    for b, t, d in ((0, 300, 4), (2, 0, 4), (2, 300, 0)):
        problem = Problem(name, b=b, t=t, d=d).forward().backward()
        torch.cuda.synchronize()
        if t == 0:
            assert all(
                torch.equal(f, s.to(f.dtype))
                for f, s in zip(problem.final, problem.initial, strict=True)
            )
        for v in problem.dinputs.values():
            assert (v == 0).all()
