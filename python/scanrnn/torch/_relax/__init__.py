"""Recurrent layers with dense weights, parallel in time by chunked relaxation.

A recurrence over T steps is cut into chunks of w steps. The framework's own serial kernel runs
all chunks at once, as one batch, from estimates of their start states; where the end of a chunk is
not yet the start of the next one, that next one is run again. Whatever the estimates, the first k
chunks are exact after k passes. What makes it fast is that networks forget: runs from two states
become one after K steps. So

1. **Burn-in**: the last K steps of every chunk, from zero, give the next chunk's start state.
2. **Pass**: all chunks run from these states, which yields the outputs and, by their ends, verifies
   the states. Only chunks whose start differs from that end by more than the tolerance run again.

The adjoint is a linear recurrence from the other end, with the same forgetting: the first K steps
of every chunk, from a zero cotangent, give the cotangent at the end of the chunk before; one
backward pass over all chunks yields the gradients and verifies the cotangents. What is missing is
not done again but added, since cotangents add up: a pass with the differences alone, over the
chunks concerned. Weight gradients are those of the full, dense Jacobians at the converged states.

In the language of DESIGN section 1 these are segment maps without tangents (J = 0). It is multiple
shooting (Lions, Maday, Turinici, "A parareal in time discretization of PDEs", 2001; Gander,
"50 years of time parallel time integration", 2015) with the identity as coarse solver.

Considered and left out: starting from the boundaries of the training step before (its sequences
are other ones, and a better start saves only the logarithm of its gain), and tangents (H columns
each; where networks forget, K steps are cheaper).

`kernel` is the framework's serial one, `rows` says how chunks follow one another, `costs` what a
step takes, `plan` decides, `forward` and `adjoint` relax, `report` tells. They know rows, states
and cotangents; `dense` knows modules.
"""
