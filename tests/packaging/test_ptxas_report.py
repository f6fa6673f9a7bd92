"""The report on the kernels' registers, on what nvcc 13.0 printed for a kernel made to spill."""

import sys
from pathlib import Path

import ptxas_report
import pytest
from commands import Run

LOG = """\
[9/25] Building CUDA object CMakeFiles/scanrnn.dir/src/cuda/kernels/example.cu.o
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN7scanrnn4cuda7exampleIfLi64EEEvPKT_PS2_' for 'sm_90'
ptxas info    : Function properties for _ZN7scanrnn4cuda7exampleIfLi64EEEvPKT_PS2_
    256 bytes stack frame, 252 bytes spill stores, 484 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 256 bytes cumulative stack size, 128 bytes smem
ptxas info    : Compile time = 50.370 ms
ptxas info    : Compiling entry function '_ZN7scanrnn4cuda7exampleIfLi4EEEvPKT_PS2_' for 'sm_90'
ptxas info    : Function properties for _ZN7scanrnn4cuda7exampleIfLi4EEEvPKT_PS2_
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Function properties for __internal_trig_reduction_slowpathd
    40 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 20 registers, used 1 barriers, 128 bytes smem, 400 bytes cmem[0]
ptxas info    : Compile time = 2.103 ms
[10/25] Building CXX object CMakeFiles/scanrnn.dir/src/common/scan.cpp.o
"""
SPILLING, QUIET = "_ZN7scanrnn4cuda7exampleIfLi64EEEvPKT_PS2_", "exampleIfLi4E"


def test_parse() -> None:
    spilling, quiet, function = ptxas_report.parse(LOG)
    assert spilling.symbol == SPILLING
    assert (spilling.registers, spilling.shared, spilling.architecture) == (32, 128, "sm_90")
    assert (spilling.stack, spilling.spill_stores, spilling.spill_loads) == (256, 252, 484)
    assert spilling.spills
    assert QUIET in quiet.symbol
    assert (quiet.registers, quiet.stack, quiet.spills) == (20, 0, False)
    assert (function.symbol, function.stack) == ("__internal_trig_reduction_slowpathd", 40)
    assert not function.spills


def test_spills_of_a_called_function_are_its_own() -> None:
    text = LOG.replace("40 bytes stack frame, 0 bytes spill", "40 bytes stack frame, 8 bytes spill")
    assert [k.spills for k in ptxas_report.parse(text)] == [True, False, True]


def test_the_last_compilation_counts() -> None:
    mended = LOG.replace("252 bytes spill stores, 484", "0 bytes spill stores, 0")
    assert not any(kernel.spills for kernel in ptxas_report.parse(LOG + mended))


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void scanrnn::cuda::scan<float, 4>(float const*, float*)", "scan<float, 4>"),
        ("scanrnn::cuda::(anonymous namespace)::copy(scanrnn::cuda::Args)", "copy"),
        ("void scanrnn::cuda::f<scanrnn::Half, (scanrnn::cuda::Way)1>(int)", "f<Half, (Way)1>"),
        ("kernel", "kernel"),
    ],
)
def test_shorten(name: str, short: str) -> None:
    assert ptxas_report.shorten(name) == short


def test_table_has_a_line_for_each_kernel_and_architecture() -> None:
    other = LOG.replace("sm_90", "sm_80").replace("Used 20 registers", "Used 255 registers")
    lines = ptxas_report.table(ptxas_report.parse(LOG + other)).splitlines()
    assert len(lines) == 1 + 2 * 2
    assert sum("20-32" in line for line in lines) == 1
    assert sum("32-255" in line for line in lines) == 1


def test_exit_status(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    log.write_text(LOG)
    report = (sys.executable, ptxas_report.__file__, log)
    output = run(*report, fails=True).stdout
    assert "252 bytes of stores, 484 of loads" in output
    assert "allowed" in run(*report, "--allow", "example.*64").stdout
    run(*report, "--allow", "another", fails=True)
    log.write_text(LOG.replace("252", "0").replace("484", "0"))
    run(*report)
    log.write_text("ninja: no work to do.\n")
    assert "no kernel" in run(*report, fails=True).stdout
