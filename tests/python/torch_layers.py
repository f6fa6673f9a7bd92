"""What each layer of scanrnn.torch computes, from its parameters, one step after the other."""

import torch
from torch.nn.functional import linear, silu, softplus
from torch_helpers import cells, runs, scan_loop, solved_cells

CELLS = cells()
SOLVED = solved_cells()
OF_CLASS = {"GILR": "gilr", "MinGRU": "min_gru", "MinLSTM": "min_lstm"}


def _before(x, start, *, reset=None, **options):
    """The input of the step before, and the last one, for x (B, T, features)."""
    B, T, features = x.shape
    out, last = {}, []
    for n, (b, steps) in enumerate(runs(B, T, **options)):
        held = x.new_zeros(features) if start is None else start[n].to(x.dtype)
        for t in steps:
            out[b, t] = torch.zeros_like(held) if reset is not None and reset[b][t] else held
            held = x[b, t]
        last.append(held)
    zero = x.new_zeros(features)
    if 0 in x.shape:
        return torch.zeros_like(x), torch.stack(last) if last else x.new_zeros(0, features)
    rows = [torch.stack([out.get((b, t), zero) for t in range(T)]) for b in range(B)]
    return torch.stack(rows), torch.stack(last)


def _of(module, name, layer, d, *, axis=0):
    """A direction's rows of a parameter, or None."""
    parameter = getattr(module, f"{name}_l{layer}", None)
    if parameter is None:
        return None
    return parameter.chunk(2 if module.bidirectional else 1, axis)[d]


def _affine(module, layer, d, x, blocks, name="ih"):
    weight, bias = (_of(module, f"{kind}_{name}", layer, d) for kind in ("weight", "bias"))
    return linear(x, weight, bias).chunk(blocks, -1)


def _gated(module, layer, d, x, states, options):
    kind = OF_CLASS[type(module).__name__]
    gates = _affine(module, layer, d, x, 3 if kind == "min_lstm" else 2)
    h, final = CELLS[kind].loop(*gates, *states, activation=module.activation, **options)
    return h, [final]


def _qrnn(module, layer, d, x, states, options):
    c0, start = states if module.window == 2 else (states[0], None)
    last = []
    if module.window == 2:
        before, ended = _before(x, start, **options)
        x, last = torch.cat([x, before], -1), [ended]
    gates = _affine(module, layer, d, x, len(module.pooling) + 1)
    if module.pooling == "f":
        gates = gates[::-1]
    kind = CELLS[f"qrnn {module.pooling}"]
    h, final = kind.loop(*gates, c0, activation=module.activation, **options)
    return h, [final, *last]


def _rg_lru(module, layer, d, x, states, options):
    D = module.hidden_size
    if hasattr(module, f"weight_ih_l{layer}"):
        (x,) = _affine(module, layer, d, x, 1)
    else:
        x = x[..., d * D : (d + 1) * D]
    r, i = (x @ torch.block_diag(*_of(module, "weight_gate", layer, d, axis=1)[g]) for g in (0, 1))
    bias = _of(module, "bias_gate", layer, d, axis=1)
    if bias is not None:
        r, i = r + bias[0], i + bias[1]
    if not module.scale_start:
        a = torch.exp(-module.c * softplus(_of(module, "lambda", layer, d)) * torch.sigmoid(r))
        first = torch.zeros(x.shape[:2], dtype=torch.bool)
        sequences = {k: v for k, v in options.items() if k != "reset"}
        for b, steps in runs(*x.shape[:2], **sequences):
            if steps and states[0] is None:
                first[b, steps[0]] = True
        x = torch.where(first[..., None], x / torch.sqrt(1 - a * a), x)
    h, final = CELLS["rg_lru"].loop(
        x, r, i, _of(module, "lambda", layer, d), *states, c=module.c, **options
    )
    return h, [final]


def _hgrn(module, layer, d, x, states, options):
    D = module.hidden_size
    f, z = _affine(module, layer, d, x, 2)
    bound = None
    if isinstance(module.lower_bounds, torch.nn.Parameter):
        shares = torch.softmax(module.lower_bounds, 0)
        bound = sum((shares[k] for k in range(1, layer + 1)), torch.zeros_like(shares[0]))
        bound = bound[d * D : (d + 1) * D]
    elif module.lower_bounds is not None:
        bound = module.lower_bounds[layer, d * D : (d + 1) * D]
    h, final = CELLS["hgrn"].loop(f, z, bound, *states, activation=module.activation, **options)
    if module.output_gate:
        norm = h / torch.sqrt(h.square().mean(-1, keepdim=True) + module.norm_eps)
        gate = silu(linear(x, _of(module, "weight_gate", layer, d)))
        h = norm * _of(module, "weight_norm", layer, d) * gate
    return h, [final]


def _gilr_lstm(module, layer, d, x, states, options):
    s0, c0 = states
    s, s_n = CELLS["gilr"].loop(*_affine(module, layer, d, x, 2, "gilr"), s0, **options)
    own = torch.cat(_affine(module, layer, d, x, 4), -1)
    gates = own + linear(_before(s, s0, **options)[0], _of(module, "weight_hh", layer, d))
    h, c_n = CELLS["qrnn ifo"].loop(*gates.chunk(4, -1), c0, **options)
    return h, [s_n, c_n]


def _diagonal(module, layer, d, x, states, options):
    of = [_of(module, name, layer, d) for name in ("weight_b", "weight_c", "weight_d", "bias")]
    B, C = (torch.complex(w[..., 0], w[..., 1]) for w in of[:2])
    if type(module).__name__ == "LRU":
        nu, theta, gamma_log = (
            _of(module, name, layer, d) for name in ("nu", "theta", "gamma_log")
        )
        u, factor = x.to(B.dtype) @ B.T, torch.exp(gamma_log)
        h, final = CELLS["lru"].loop(u, nu, theta, factor, *states, **options)
        scale = 1
    else:
        rate, frequency, log_step = (
            _of(module, name, layer, d) for name in ("rate", "frequency", "log_step")
        )
        step = torch.exp(log_step)
        # Zero-order hold: exp(Lambda step), and the integral of the same over a step.
        pole = -torch.exp(rate) + 1j * frequency
        radius, angle = torch.exp(-torch.exp(rate) * step), frequency * step
        lam = radius * (torch.cos(angle) + 1j * torch.sin(angle))
        u = (lam - 1) / pole * (x.to(B.dtype) @ B.T)
        h, final = scan_loop(lam, u, *states, **options)
        scale = 2
    y = scale * (h @ C.T).real
    y = y + (x * of[2] if of[2].ndim == 1 else linear(x, of[2]))
    return y if of[3] is None else y + of[3], [final]


def _vectors(module, name, layer, d):
    vector = _of(module, name, layer, d)
    return () if vector is None else vector.split(module.hidden_size)


def _diagonal_gru(module, layer, d, x, states, options):
    gates = _affine(module, layer, d, x, 3)
    bias = _of(module, "bias_hh", layer, d)
    vectors = _vectors(module, "weight_hh", layer, d)
    h, *finals = SOLVED["diagonal_gru"].loop(*gates, *vectors, bias, *states, **options)
    return h, finals


def _diagonal_lstm(module, layer, d, x, states, options):
    f, g, o, *i = _affine(module, layer, d, x, 3 if module.coupled else 4)
    u_f, u_g, u_o, *u_i = _vectors(module, "weight_hh", layer, d)
    peep = [*_vectors(module, "weight_ch", layer, d), None, None, None][:3]
    if module.coupled:
        args, kind = (f, g, o, u_f, u_g, u_o, *peep[:2]), "diagonal_lstm coupled"
    else:
        args = (*i, f, g, o, *u_i, u_f, u_g, u_o, peep[2], *peep[:2])
        kind = "diagonal_lstm peephole"
    h, *finals = SOLVED[kind].loop(*args, *states, **options)
    return h, finals


def _indrnn(module, layer, d, x, states, options):
    (p,) = _affine(module, layer, d, x, 1)
    u = _of(module, "weight_hh", layer, d)
    h, *finals = SOLVED["indrnn"].loop(p, u, *states, activation=module.nonlinearity, **options)
    return h, finals


_LAYERS = {
    "DiagonalGRU": _diagonal_gru,
    "DiagonalLSTM": _diagonal_lstm,
    "IndRNN": _indrnn,
    "GILR": _gated,
    "MinGRU": _gated,
    "MinLSTM": _gated,
    "QRNN": _qrnn,
    "RGLRU": _rg_lru,
    "HGRN": _hgrn,
    "GILRLSTM": _gilr_lstm,
    "LRU": _diagonal,
    "S5": _diagonal,
}


def layers_loop(module, x, hx=None, *, masks=None, **options):
    """A module on x (B, T, features): (output, state), from plain operators.

    masks are factors on the output of every layer but the last.
    """
    directions = 2 if module.bidirectional else 1
    count = len(module._states)
    parts = [None] * count if hx is None else [hx] if count == 1 else [*hx]
    by_part: list = [[] for _ in range(count)]
    column = 0
    valid = None
    if "lengths" in options:
        valid = x.new_zeros(x.shape[:2], dtype=torch.bool)
        for b, steps in runs(*x.shape[:2], **{k: v for k, v in options.items() if k != "reset"}):
            valid[b, steps] = True
    for layer in range(module.num_layers):
        features = x.shape[-1]
        outputs = []
        for d in range(directions):
            states = []
            for i, part in enumerate(parts):
                if part is None:
                    states.append(None)
                elif module._states[i] == "previous":
                    states.append(part[d, :, column : column + features])
                else:
                    states.append(part[layer * directions + d])
            function = _LAYERS[type(module).__name__]
            y, finals = function(module, layer, d, x, states, options | {"reverse": d == 1})
            weight = _of(module, "weight_hr", layer, d)
            outputs.append(y if weight is None else linear(y, weight))
            for i, final in enumerate(finals):
                by_part[i].append(final)
        column += features
        x = torch.cat(outputs, -1)
        if valid is not None:
            x = torch.where(valid[..., None], x, 0)
        if masks is not None and layer < module.num_layers - 1:
            x = x * masks[layer]
    wholes = []
    for name, finals in zip(module._states, by_part, strict=True):
        if name == "previous":
            by_layer = [finals[i : i + directions] for i in range(0, len(finals), directions)]
            wholes.append(torch.cat([torch.stack(f) for f in by_layer], -1))
        else:
            wholes.append(torch.stack(finals))
    return x, wholes[0] if count == 1 else tuple(wholes)


def parts_of(hx):
    """The tensors of a state."""
    return [] if hx is None else [*hx] if isinstance(hx, tuple) else [hx]


def state_of(module, N, *, dtype=torch.float64, requires_grad=True):
    """A random state for N sequences."""
    wide = {torch.float64: torch.complex128, torch.float32: torch.complex64}
    dtype = wide[dtype] if type(module).__name__ in ("LRU", "S5") else dtype
    parts = [
        torch.randn(rows, N, features, dtype=dtype).requires_grad_(requires_grad)
        for rows, features in module._state_sizes()
    ]
    return parts[0] if len(parts) == 1 else tuple(parts)
