#!/bin/sh
# Everything that needs a GPU: tests/gpu/run.sh [STEP...], from any folder. Without steps: all.
#
#   build      install this package, with CUDA for the GPU that is here, into the running Python
#   test       pytest tests/gpu; more arguments in PYTEST_ARGS: "-m slow -k s06" runs those beyond 2^31
#              elements (31 GiB of device memory), "-k m01" those for two devices (see test_gpu_two.py);
#              with pytest-xdist "-n 26 --dist worksteal", and then OMP_NUM_THREADS=1 in the
#              environment (32 cores: 93 s, without the variable more than 330)
#   sanitize   memcheck, racecheck, initcheck and synccheck on a reduced suite
#   bench      python tests/bench/gpu.py; more arguments in BENCH_ARGS
#
# Environment:
#   PYTHON          the Python to use; default: python3
#   PIP_FIND_LINKS  a folder of wheels from which pytest and hypothesis are installed if missing
#   SANITIZE_TOOLS  default: memcheck racecheck initcheck synccheck
#   CMAKE_CUDA_ARCHITECTURES, CUDACXX, MAX_JOBS as for any build; default: the GPUs here
#
# The last lines are a table of the steps. The exit status is 0 if all of them passed.
set -u
cd "$(dirname "$0")/../.." || exit 1
python=${PYTHON:-python3}
summary=$(mktemp)
trap 'rm -f "$summary"' EXIT
failed=0

# step NAME COMMAND...: runs it, and notes how it ended and how long it took.
step() {
    name=$1
    shift
    echo "==== $name"
    start=$(date +%s)
    if "$@"; then result=passed; else result="FAILED ($?)" failed=1; fi
    printf '%-22s %-12s %5d s\n' "$name" "$result" $(($(date +%s) - start)) >>"$summary"
}

build() {
    "$python" -m pip install --no-build-isolation --no-deps --force-reinstall \
        -Ccmake.define.SCANRNN_CUDA=ON \
        ${CMAKE_CUDA_ARCHITECTURES:+-Ccmake.define.CMAKE_CUDA_ARCHITECTURES="$CMAKE_CUDA_ARCHITECTURES"} .
}

# Outside of the source tree's Python folder, so that the installed package is what is tested.
tests() {
    "$python" -m pytest -q -p no:cacheprovider "$@"
}

ensure_pytest() {
    for package in pytest hypothesis; do
        "$python" -c "import $package" 2>/dev/null && continue
        if [ -n "${PIP_FIND_LINKS:-}" ]; then
            "$python" -m pip install -q --no-index --find-links "$PIP_FIND_LINKS" $package
        else
            "$python" -m pip install -q $package
        fi || echo "$package is missing: what needs it is skipped"
    done
    # hypothesis may be missing; pytest may not.
    "$python" -c "import pytest"
}

# Every allocation is one of its own, so that an access beyond it is seen. Only this library's kernels
# are looked into, except by initcheck, which must see who else writes.
sanitize() {
    tool=$1
    filter="--kernel-name kns=scanrnn"
    [ "$tool" = initcheck ] && filter=
    # shellcheck disable=SC2086
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$tool" --error-exitcode 9 \
        --report-api-errors no --print-limit 20 --launch-timeout 60 $filter \
        "$python" -m pytest -q -x -p no:cacheprovider -k "${SANITIZE_SELECT:-}" \
        tests/gpu/test_gpu_small.py
}

for what in "${@:-all}"; do
    case $what in
    build) step build build ;;
    test)
        step pytest ensure_pytest
        # shellcheck disable=SC2086
        step tests tests --durations=10 ${PYTEST_ARGS:-} tests/gpu
        ;;
    sanitize)
        ensure_pytest
        for tool in ${SANITIZE_TOOLS:-memcheck racecheck initcheck synccheck}; do
            step "sanitizer: $tool" sanitize "$tool"
        done
        ;;
    # shellcheck disable=SC2086
    bench) step bench "$python" tests/bench/gpu.py ${BENCH_ARGS:-} ;;
    all)
        sh "$0" build test sanitize bench
        exit
        ;;
    *)
        echo "run.sh: unknown step $what; expected build, test, sanitize or bench" >&2
        exit 2
        ;;
    esac
done

echo "==== summary"
cat "$summary"
exit $failed
