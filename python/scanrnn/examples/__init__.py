"""Examples that run: ``python -m scanrnn.examples.<name>``.

- `japanese_vowels`: speakers by their recordings of unequal length, in PyTorch.
- `adding`: two numbers marked among thousands, a long-context problem, in PyTorch.
"""
