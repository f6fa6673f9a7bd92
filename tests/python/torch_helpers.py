"""The recurrences as plain differentiable loops in PyTorch, and inputs to compare on."""

import itertools

import torch
from torch.nn.functional import linear

#: Ways to cut (B, T) = (2, 5), or (1, 10) for packed sequences, into sequences.
OPTIONS = {
    "plain": {},
    "reverse": {"reverse": True},
    "packed": {"cu_seqlens": [0, 3, 4, 4, 10]},
    "packed-reverse-reset": {
        "cu_seqlens": [0, 3, 4, 4, 10],
        "reverse": True,
        "reset": [[0, 1, 0, 0, 0, 0, 1, 0, 0, 1]],
    },
    "lengths": {"lengths": [3, 0]},
    "left-reverse": {"lengths": [3, 5], "padding_side": "left", "reverse": True},
    "lengths-reset": {"lengths": [4, 5], "reset": [[0, 0, 1, 0, 1], [1, 0, 0, 0, 1]]},
    "left-reset": {
        "lengths": [4, 2],
        "padding_side": "left",
        "reset": [[0, 0, 1, 0, 0], [1, 0, 0, 0, 1]],
    },
}


def size_of(options):
    """(B, T, N) that fit an entry of OPTIONS."""
    return (1, 10, 4) if "cu_seqlens" in options else (2, 5, 2)


def as_tensors(options):
    """Options with tensors in place of lists: reset as bool."""
    out = dict(options)
    for name in ("cu_seqlens", "lengths"):
        if name in out:
            out[name] = torch.tensor(out[name])
    if "reset" in out:
        out["reset"] = torch.tensor(out["reset"]).bool()
    return out


def runs(B, T, *, cu_seqlens=None, lengths=None, padding_side="right", reverse=False):
    """For every sequence its batch row and its steps, in the order of the recurrence."""
    if cu_seqlens is not None:
        bounds = [(0, int(i), int(j)) for i, j in itertools.pairwise(cu_seqlens)]
    elif lengths is not None and padding_side == "left":
        bounds = [(b, T - int(n), T) for b, n in enumerate(lengths)]
    elif lengths is not None:
        bounds = [(b, 0, int(n)) for b, n in enumerate(lengths)]
    else:
        bounds = [(b, 0, T) for b in range(B)]
    return [(b, list(range(i, j))[:: -1 if reverse else 1]) for b, i, j in bounds]


def _stack(steps, x):
    """(B, T, D) from {(b, t): (D,)}, 0 where there is none."""
    B, T, D = x.shape
    zero = x.new_zeros(D)
    if 0 in x.shape:
        return torch.zeros_like(x)
    return torch.stack([torch.stack([steps.get((b, t), zero) for t in range(T)]) for b in range(B)])


def scan_loop(a, x, h0=None, *, reset=None, **options):
    """h_t = a_t h_{t-1} + x_t, one step after the other: (h, final)."""
    B, T, D = x.shape
    a = a.expand(x.shape)
    h, final = {}, []
    for n, (b, steps) in enumerate(runs(B, T, **options)):
        state = x.new_zeros(D) if h0 is None else h0[n]
        for t in steps:
            state = x[b, t] if reset is not None and reset[b][t] else a[b, t] * state + x[b, t]
            h[b, t] = state
        final.append(state)
    return _stack(h, x), torch.stack(final) if final else x.new_zeros(0, D)


ACTIVATIONS = {"identity": lambda c: c, "tanh": torch.tanh, "relu": torch.relu}


def sru_loop(
    u, f, r, skip=None, bias_f=None, bias_r=None, c0=None, *, v_f=0, v_r=0, activation="identity",
    reset=None, **options,
):  # fmt: skip
    """The SRU's equations, one step after the other: (h, final)."""
    B, T, D = u.shape
    zero = u.new_zeros(D)
    h, final = {}, []
    for n, (b, steps) in enumerate(runs(B, T, **options)):
        c = zero if c0 is None else c0[n]
        for t in steps:
            before = zero if reset is not None and reset[b][t] else c
            forget = torch.sigmoid(f[b, t] + v_f * before + (zero if bias_f is None else bias_f))
            show = torch.sigmoid(r[b, t] + v_r * before + (zero if bias_r is None else bias_r))
            c = forget * before + (1 - forget) * u[b, t]
            through = zero if skip is None else skip[b, t]
            h[b, t] = show * ACTIVATIONS[activation](c) + (1 - show) * through
        final.append(c)
    return _stack(h, u), torch.stack(final) if final else u.new_zeros(0, D)


def module_loop(module, x, hx=None, *, masks=None, **options):
    """What an SRU module computes, from its parameters: x and output (B, T, features).

    masks are factors on the output of every layer but the last.
    """
    D, directions = module.hidden_size, 2 if module.bidirectional else 1
    finals = []
    for layer in range(module.num_layers):
        weight = getattr(module, f"weight_ih_l{layer}")
        products = linear(x, weight).unflatten(-1, (directions, -1, D))
        outputs = []
        for d in range(directions):
            u, f, r, *projection = products[..., d, :, :].unbind(-2)
            if projection:
                (skip,) = projection
            elif module.highway == "none":
                skip = None
            else:
                skip = x.unflatten(-1, (directions, D))[..., d, :] * module.highway_scale
            biases = (None, None)
            if module.bias:
                biases = getattr(module, f"bias_ih_l{layer}").view(directions, 2, D)[d]
            v_f, v_r = 0, 0
            if module.recurrent:
                v_f, v_r = getattr(module, f"weight_c_l{layer}").view(directions, 2, D)[d]
            h, final = sru_loop(
                u, f, r, skip, *biases,
                None if hx is None else hx[layer * directions + d], v_f=v_f, v_r=v_r,
                activation=module.activation, reverse=d == 1, **options,
            )  # fmt: skip
            outputs.append(h)
            finals.append(final)
        x = torch.cat(outputs, -1)
        if masks is not None and layer < module.num_layers - 1:
            x = x * masks[layer]
    return x, torch.stack(finals)


def leaf(*shape, dtype=torch.float64, unit=False):
    """Random tensor that requires a gradient; in (0, 1) with unit."""
    t = torch.rand(shape, dtype=dtype) if unit else torch.randn(shape, dtype=dtype)
    return t.requires_grad_()


def gradients(outputs, inputs, *, seed=1, retain_graph=False):
    """Gradients of a random linear function of the outputs that are not None."""
    generator = torch.Generator().manual_seed(seed)
    outputs = [y for y in outputs if y is not None]
    weights = [
        torch.randn(y.shape, generator=generator, dtype=y.real.dtype).to(y.device) for y in outputs
    ]
    loss = sum((y * w).sum() for y, w in zip(outputs, weights, strict=True))
    loss = loss.real + loss.imag if loss.is_complex() else loss
    return torch.autograd.grad(loss, inputs, allow_unused=True, retain_graph=retain_graph)


def assert_gradients_match(ours, theirs, **tolerance):
    """Compare two tuples of gradients, where None counts as zeros."""
    for i, (g, e) in enumerate(zip(ours, theirs, strict=True)):
        if g is None or e is None:
            present = g if e is None else e
            assert present is None or not present.any(), f"gradient {i} is None on one side"
        else:
            assert g.dtype == e.dtype
            torch.testing.assert_close(g, e, **tolerance)


# ---- Cells ---------------------------------------------------------------------------------------

ALL_ACTIVATIONS = ACTIVATIONS | {
    "silu": lambda x: x * torch.sigmoid(x),
    "sigmoid": torch.sigmoid,
    "positive": lambda x: torch.where(x >= 0, x + 0.5, torch.sigmoid(x)),
}


def _sru_step(c, u, f, r, skip=0, bias_f=0, bias_r=0, *, g):
    keep, show = torch.sigmoid(f + bias_f), torch.sigmoid(r + bias_r)
    c = keep * c + (1 - keep) * u
    return show * g(c) + (1 - show) * skip, c


def _gilr_step(h, f, z, bound=0, *, g):
    keep = bound + (1 - bound) * torch.sigmoid(f)
    h = keep * h + (1 - keep) * g(z)
    return h, h


def _min_gru_step(h, z, v, *, g):
    update = torch.sigmoid(z)
    h = (1 - update) * h + update * g(v)
    return h, h


def _min_lstm_step(h, f, i, v, *, g):
    keep, add = torch.sigmoid(f), torch.sigmoid(i)
    h = (keep * h + add * g(v)) / (keep + add)
    return h, h


def _qrnn_step(c, z, f, o=None, i=None, *, g):
    keep = torch.sigmoid(f)
    c = keep * c + (1 - keep if i is None else torch.sigmoid(i)) * g(z)
    return c if o is None else torch.sigmoid(o) * c, c


def _rg_lru_step(h, x, r, i, lam, *, c=8.0):
    a = torch.exp(-c * torch.nn.functional.softplus(lam) * torch.sigmoid(r))
    h = a * h + torch.sqrt(1 - a * a) * torch.sigmoid(i) * x
    return h, h


def _lru_step(h, u, nu, theta, gamma=None):
    radius = torch.exp(-torch.exp(nu))
    if gamma is None:
        gamma = torch.sqrt(1 - radius**2)
    h = torch.polar(radius, torch.exp(theta)) * h + gamma * u
    return h, h


def _diagonal_gru_step(before, r, z, n, u_r, u_z, u_n, b_n=0):
    (h,) = before
    reset, update = torch.sigmoid(r + u_r * h), torch.sigmoid(z + u_z * h)
    h = (1 - update) * torch.tanh(n + reset * (u_n * h + b_n)) + update * h
    return h, (h,)


def _diagonal_lstm_step(
    before, f, g, o, u_f, u_g, u_o, i=None, u_i=None, w_i=0, w_f=0, w_o=0
):  # fmt: skip
    h, c = before
    keep = torch.sigmoid(f + u_f * h + w_f * c)
    add = 1 - keep if i is None else torch.sigmoid(i + u_i * h + w_i * c)
    c = keep * c + add * torch.tanh(g + u_g * h)
    h = torch.sigmoid(o + u_o * h + w_o * c) * torch.tanh(c)
    return h, (h, c)


def _indrnn_step(before, p, u, *, g):
    h = g(p + u * before[0])
    return h, (h,)


def _recurrent_sru_step(before, u, f, r, skip=0, bias_f=0, bias_r=0, v_f=0, v_r=0, *, g):
    y, c = _sru_step(
        before[0], u, f + v_f * before[0], r + v_r * before[0], skip, bias_f, bias_r, g=g
    )
    return y, (c,)


class Cell:
    """A cell as a function, and its equations as a step."""

    def __init__(self, function, step, full, vectors=(), optional=(), *, g=None, dtype=None):
        self.function = function
        self.step = step
        self.full = full.split()
        self.vectors = [*vectors]
        self.optional = [*optional]
        self.g = g
        self.dtype = dtype  # of the inputs, where it isn't a real one

    @property
    def names(self):
        """All arguments, the state last."""
        return [*self.full, *self.vectors, "state"]

    def inputs(self, options, D=3, dtype=torch.float64, requires_grad=True):
        """Random arguments that fit an entry of OPTIONS."""
        B, T, N = size_of(options)
        return self.inputs_of(B, T, N, D, dtype, requires_grad)

    def inputs_of(self, B, T, N, D, dtype=torch.float64, requires_grad=True):
        wide = dtype if self.dtype is None else {torch.float64: torch.complex128}[dtype]
        tensors = [torch.randn(B, T, D, dtype=wide) for _ in self.full]
        # A bound is a number from 0 to 1, and a phase or rate a small one.
        tensors += [torch.rand(D, dtype=dtype) * 0.8 + 0.1 for _ in self.vectors]
        tensors.append(torch.randn(N, D, dtype=wide))
        return [t.requires_grad_(requires_grad) for t in tensors]

    def loop(self, *args, reset=None, activation=None, c=None, **options):
        """The equations, one step after the other: (y, final)."""
        *args, state = args
        present = len(self.full)
        full, vectors = args[:present], args[present:]
        keywords = {}
        if self.g is not None:
            keywords["g"] = ALL_ACTIVATIONS[self.g if activation is None else activation]
        if c is not None:
            keywords["c"] = c
        u = full[0]
        B, T, D = u.shape
        vectors = {n: v for n, v in zip(self.vectors, vectors, strict=True) if v is not None}
        outputs, finals = {}, []
        for n, (b, steps) in enumerate(runs(B, T, **options)):
            held = u.new_zeros(D) if state is None else state[n]
            for t in steps:
                before = torch.zeros_like(held) if reset is not None and reset[b][t] else held
                own = {
                    name: x[b, t] for name, x in zip(self.full, full, strict=True) if x is not None
                }
                outputs[b, t], held = self.step(before, **own, **vectors, **keywords)
            finals.append(held)
        return _stack(outputs, u), torch.stack(finals) if finals else u.new_zeros(0, D)

    def both(self, *args, **options):
        """The function's (y, final)."""
        return self.function(*args, return_final=True, **options)


def cells():
    """All cells by name; a function, so that the other tests can do without them."""
    import scanrnn.torch as srt

    gilr, qrnn = _gilr_step, _qrnn_step
    return {
        "sru": Cell(
            srt.sru, _sru_step, "u f r skip", ["bias_f", "bias_r"], ["skip", "bias_f", "bias_r"],
            g="identity",
        ),
        "gilr": Cell(srt.gilr, gilr, "f z", g="tanh"),
        "hgrn": Cell(srt.hgrn, gilr, "f z", ["bound"], ["bound"], g="silu"),
        "min_gru": Cell(srt.min_gru, _min_gru_step, "z v", g="identity"),
        "min_lstm": Cell(srt.min_lstm, _min_lstm_step, "f i v", g="identity"),
        "qrnn f": Cell(_with_none(srt.qrnn, 2), qrnn, "z f", g="tanh"),
        "qrnn fo": Cell(_with_none(srt.qrnn, 3, 1), qrnn, "z f o", g="tanh"),
        "qrnn ifo": Cell(srt.qrnn, qrnn, "z f o i", g="tanh"),
        "rg_lru": Cell(srt.rg_lru, _rg_lru_step, "x r i", ["lam"]),
        "lru": Cell(
            srt.lru, _lru_step, "u", ["nu", "theta", "gamma"], ["gamma"], dtype=torch.complex128
        ),
    }  # fmt: skip


class Solved(Cell):
    """A nonlinear cell, with one state or two: their names are those of the initial states."""

    def __init__(
        self, function, step, full, vectors, optional=(), *, g=None, states=("h0",), absent=()
    ):
        super().__init__(function, step, full, vectors.split(), optional, g=g)
        self.states = [*states]
        self.absent = dict.fromkeys(absent)  # required arguments that may be None, and are

    @property
    def names(self):
        return [*self.full, *self.vectors, *self.states]

    def inputs_of(self, B, T, N, D, dtype=torch.float64, requires_grad=True):
        tensors = [torch.randn(B, T, D, dtype=dtype) for _ in self.full]
        # Of at most 1, or states that relu doesn't bound would grow.
        tensors += [torch.randn(D, dtype=dtype).tanh() for _ in self.vectors]
        tensors += [torch.randn(N, D, dtype=dtype) for _ in self.states]
        return [t.requires_grad_(requires_grad) for t in tensors]

    def loop(self, *args, reset=None, activation=None, **options):
        """The equations, one step after the other: (y, *finals)."""
        args = dict(zip(self.names, args, strict=True))
        full = {name: args[name] for name in self.full if args[name] is not None}
        keywords = {name: args[name] for name in self.vectors if args[name] is not None}
        if self.g is not None:
            keywords["g"] = ACTIVATIONS[activation or self.g]
        u = next(iter(full.values()))
        B, T, D = u.shape
        zero = u.new_zeros(D)
        outputs, finals = {}, []
        for n, (b, steps) in enumerate(runs(B, T, **options)):
            held = tuple(zero if args[s] is None else args[s][n] for s in self.states)
            for t in steps:
                if reset is not None and reset[b][t]:
                    held = tuple(torch.zeros_like(s) for s in held)
                own = {name: x[b, t] for name, x in full.items()}
                outputs[b, t], held = self.step(held, **own, **keywords)
            finals.append(torch.stack(held))
        last = torch.stack(finals, 1) if finals else u.new_zeros(len(self.states), 0, D)
        return (_stack(outputs, u), *last)

    def call(self, *args, **options):
        """The function on all arguments in the order of `names`."""
        return self.function(**dict(zip(self.names, args, strict=True)), **self.absent, **options)

    def both(self, *args, **options):
        """The function's (y, *finals)."""
        y, final = self.call(*args, return_final=True, **options)
        return (y, *final) if isinstance(final, tuple) else (y, final)

    def one_step(self, *args):
        """The `*_step` function: (y, *states)."""
        import scanrnn.torch as srt

        function = getattr(srt, f"{self.function.__name__}_step")
        names = [name.removesuffix("0") for name in self.names]
        y, state = function(**dict(zip(names, args, strict=True)), **self.absent)
        return (y, *state) if isinstance(state, tuple) else (y, state)


def solved_cells():
    """All nonlinear cells by name."""
    import scanrnn.torch as srt

    lstm, states = _diagonal_lstm_step, ["h0", "c0"]
    return {
        "diagonal_gru": Solved(
            srt.diagonal_gru, _diagonal_gru_step, "r z n", "u_r u_z u_n b_n", ["b_n"]
        ),
        "diagonal_lstm": Solved(
            srt.diagonal_lstm, lstm, "i f g o", "u_i u_f u_g u_o", states=states
        ),
        "diagonal_lstm peephole": Solved(
            srt.diagonal_lstm, lstm, "i f g o", "u_i u_f u_g u_o w_i w_f w_o",
            ["w_i", "w_f", "w_o"], states=states,
        ),
        "diagonal_lstm coupled": Solved(
            srt.diagonal_lstm, lstm, "f g o", "u_f u_g u_o w_f w_o", ["w_f", "w_o"],
            states=states, absent=["i", "u_i"],
        ),
        "indrnn": Solved(srt.indrnn, _indrnn_step, "p", "u", g="relu"),
        "sru": Solved(
            srt.sru, _recurrent_sru_step, "u f r skip", "bias_f bias_r v_f v_r",
            ["skip", "bias_f", "bias_r"], g="identity", states=["c0"],
        ),
    }  # fmt: skip


def _with_none(function, at, count=2):
    """The function with None in some places, counted before the state."""

    def call(*args, **options):
        return function(*args[:at], *(None,) * count, *args[at:], **options)

    call.__name__ = function.__name__
    return call
