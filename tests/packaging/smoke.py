"""What an installed scanrnn must do anywhere: compute, and with the frameworks that are named.

    python smoke.py            with NumPy alone
    python smoke.py torch jax  with both

Exit status 0 if all of it is right. Run by wheels.py, without the source tree.
"""

import sys

import numpy as np
import scanrnn

FRAMEWORKS = {"torch", "jax", "cupy"}


def serial(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    h = np.zeros_like(x)
    state = np.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        state = a[:, t] * state + x[:, t]
        h[:, t] = state
    return h


def main(frameworks: list[str]) -> None:
    loaded = FRAMEWORKS & sys.modules.keys()
    assert not loaded, f"importing scanrnn imports {loaded}"

    rng = np.random.default_rng(0)
    a = rng.uniform(0.5, 1, (2, 1000, 5))
    x = rng.standard_normal((2, 1000, 5))
    expected = serial(a, x)
    # The gradient of h.sum() with respect to x is the recurrence from the other end.
    shifted = np.concatenate([a[:, 1:], np.zeros_like(a[:, :1])], axis=1)
    gradient = serial(shifted[:, ::-1], np.ones_like(x))[:, ::-1]

    h = scanrnn.scan(a, x)
    np.testing.assert_allclose(h, expected, rtol=1e-12, atol=1e-12)
    _, dx, _ = scanrnn.scan_vjp(a, h, np.ones_like(h))
    np.testing.assert_allclose(dx, gradient, rtol=1e-12)

    if "torch" in frameworks:
        import torch
        from scanrnn import torch as scanrnn_torch

        y = torch.tensor(x, requires_grad=True)
        scanrnn_torch.scan(torch.tensor(a), y).sum().backward()
        np.testing.assert_allclose(y.grad.numpy(), gradient, rtol=1e-12)
        layer = scanrnn_torch.SRU(5, 4, batch_first=True)
        assert layer(torch.tensor(x, dtype=torch.float32))[0].shape == (2, 1000, 4)

    if "jax" in frameworks:
        import jax
        from scanrnn import jax as scanrnn_jax

        jax.config.update("jax_enable_x64", True)
        loss = jax.jit(jax.grad(lambda v: scanrnn_jax.scan(a, v).sum()))
        np.testing.assert_allclose(loss(jax.numpy.asarray(x)), gradient, rtol=1e-12)

    found = FRAMEWORKS & sys.modules.keys()
    assert found <= set(frameworks), f"loaded {found}, expected {frameworks}"
    versions = [f"{name} {sys.modules[name].__version__}" for name in ("numpy", *sorted(found))]
    print(f"scanrnn {scanrnn.__version__}: right with {', '.join(versions)}")


if __name__ == "__main__":
    main(sys.argv[1:])
