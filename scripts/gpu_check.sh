#!/usr/bin/env bash
# On a machine with one GPU, in at most 8 minutes: is flex the reference, how fast is what, does
# the demo train? Nothing needs a network; see scripts/gpu_check.py, which gets all arguments.
#
#   scripts/gpu_check.sh                          results: outputs/gpu_check, or $OUT
#   scripts/gpu_check.sh --only facts flex
#   scripts/gpu_check.sh --device cpu --rehearse  a rehearsal without a GPU
#
# Packages that this Python lacks are taken from build/gpu (scripts/gpu_wheels.sh), into a folder
# of their own: what is installed stays as it is. PYTHON=... chooses another Python.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-outputs/gpu_check}
bring=$(realpath -m "${BRING:-build/gpu}")
python=${PYTHON:-python3}
if test -z "${PYTHON:-}" -a -x .venv/bin/python; then python=$PWD/.venv/bin/python; fi
mkdir -p "$out"
out=$(realpath "$out")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

missing() { # the wheels of packages that are not installed
    "$python" - "$bring"/wheels/*.whl <<'PYTHON'
import sys
from importlib import metadata
from pathlib import Path

for wheel in map(Path, sys.argv[1:]):
    try:
        metadata.distribution(wheel.name.split("-")[0])
    except metadata.PackageNotFoundError:
        print(wheel)
PYTHON
}

if compgen -G "$bring/wheels/*.whl" >/dev/null; then
    mapfile -t wheels < <(missing)
    if test "${#wheels[@]}" -gt 0; then
        echo "installing ${#wheels[@]} packages into $place"
        "$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir \
            --disable-pip-version-check --root-user-action=ignore \
            --target "$place/site" "${wheels[@]}" || echo "that failed: going on without"
    fi
fi
if test -d "$bring/cache"; then
    cp -r "$bring/cache" "$place/cache"
    export POSBENCH_CACHE=$place/cache
fi
if test -f "$bring/commit"; then
    POSBENCH_COMMIT=${POSBENCH_COMMIT:-$(cat "$bring/commit")}
    export POSBENCH_COMMIT
fi
PYTHONPATH=$place/site${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

if ! "$python" -c 'import posbench.conf' 2>/dev/null; then # not installed: laid out as if it were
    mkdir "$place/tree"
    cp -r conf posbench pyproject.toml scripts tests "$place/tree"
    cp -r conf "$place/tree/posbench/conf"
    cd "$place/tree" || exit 1
fi

"$python" scripts/gpu_check.py --out "$out" "$@" 2>&1 | tee "$out/gpu_check.txt"
exit "${PIPESTATUS[0]}"
