"""What is told of a build's CUDA code, on a made-up one."""

from pathlib import Path

import architectures


def test_machine_code_by_kernel() -> None:
    code = architectures.Code(
        {
            "run_rows<ScanCell, float, true, false>": 3000,
            "run_rows<Prepared<SruCell<false>>, float, true>": 4000,
            "run_rows<ScanCell, Complex<float>, false, true>": 1000,
            "solve_backward<IndRnnCell, Half>": 2000,
            "clear": 500,
        }
    )
    head, _, *rows = architectures.by_kernel(code).splitlines()
    assert head == "| kernel | pass | Half | float | Complex<float> | - |"
    assert rows == [
        "| run_rows | backward |  | 7 |  |  |",
        "| solve_backward | backward | 2 |  |  |  |",
        "| run_rows | forward |  |  | 1 |  |",
        "| clear | forward |  |  |  | 0 |",
    ]


def test_seconds_of_the_last_compilation(tmp_path: Path) -> None:
    (tmp_path / ".ninja_log").write_text(
        "# ninja log v6\n0\t9000\t1\ta.cu.o\tf\n100\t2600\t2\ta.cu.o\tf\n0\t500\t3\tb.cu.o\tf\n"
    )
    objects = {"a": tmp_path / "a.cu.o"}
    assert architectures.seconds_of(tmp_path, objects) == {"a": 2.5}
