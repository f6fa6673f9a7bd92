"""``python -m scanrnn demo``: a character-level SRU language model, trained and sampled from.

The demo needs nothing but NumPy. ``text`` reads and batches the text, ``model`` is the network and
its gradient in NumPy (or CuPy), ``torch_model`` and ``jax_model`` are the same network in those
frameworks, ``train`` is the loop, ``checkpoint`` stores weights, ``sample`` writes text with them
and ``speed`` times a serial loop over time against the scan.
"""
