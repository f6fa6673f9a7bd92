"""Plots what RESULTS.md says of the dense LSTM: time against the number of steps.

    python tests/bench/plot.py            writes lstm.svg beside this file

Needs matplotlib. It measures nothing: the numbers are those of the table "Never slower than
serial + 10%", which `python tests/bench/dense.py grid` writes.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
TABLE = "**Never slower than serial + 10%, milliseconds**"
SIZES = (256, 512)
STYLES = {1: "-", 8: "--"}


def rows(text: str) -> list[dict[str, str]]:
    """The table's rows by column; of the two columns `ours`, the last: forward + backward."""
    lines = text.split(TABLE, 1)[1].strip().split("\n\n")[0].splitlines()
    head, _, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(head, line, strict=True)) for line in body]


def main() -> None:
    table = rows((HERE / "RESULTS.md").read_text())
    plt.rcParams.update({"svg.hashsalt": "scanrnn", "svg.fonttype": "none", "font.size": 9})
    figure, axes = plt.subplots(1, len(SIZES), figsize=(8, 3.2), sharey=True, layout="constrained")
    for ax, hidden in zip(axes, SIZES, strict=True):
        for batch, style in STYLES.items():
            chosen = [r for r in table if (r["H"], r["B"]) == (str(hidden), str(batch))]
            steps = [int(r["T"]) for r in chosen]
            for name, column, colour in (
                ("torch.nn.LSTM (cuDNN)", "serial fwd+bwd", "#888888"),
                ("scanrnn.torch.LSTM", "ours", "#0a6cbd"),
            ):
                times = [float(r[column]) for r in chosen]
                ax.loglog(steps, times, style, color=colour, marker="o", ms=3)
                ax.plot([], [], style, color=colour, label=f"{name}, B = {batch}")
        ax.set(title=f"H = {hidden}", xlabel="steps T")
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("forward + backward, ms")
    axes[0].legend(frameon=False, fontsize=8)
    figure.suptitle("LSTM layer with the same weights and results, float32, one H200", fontsize=10)
    figure.savefig(HERE / "lstm.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
