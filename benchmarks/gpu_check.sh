#!/bin/sh
# One command for a machine with an NVIDIA GPU: builds the CUDA kernels for it out of this checkout, runs their tests
# on it, compares them with the CPU's and measures them. About five minutes, nothing is downloaded, random data only.
#
#   benchmarks/gpu_check.sh              needs nvcc, cmake, and the environment that `make serve` has set up
#   PYTHON=python3 benchmarks/gpu_check.sh
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}

"$PYTHON" -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "torch sees no CUDA device: install a torch with CUDA, or mend the driver")'
ARCHITECTURE=$("$PYTHON" -c 'import torch; print("%d%d" % torch.cuda.get_device_capability())')

echo "== building for sm_$ARCHITECTURE (a minute)"
mkdir -p build/gpu
LOG=build/gpu/build.log
cmake -S . -B build/gpu -DCMAKE_BUILD_TYPE=Release -DDDTREE_CUDA=ON \
    -DDDTREE_CUDA_ARCHITECTURES="$ARCHITECTURE" -DPython_EXECUTABLE="$("$PYTHON" -c 'import sys; print(sys.executable)')" \
    -Dnanobind_DIR="$("$PYTHON" -m nanobind --cmake_dir)" > $LOG 2>&1 || { cat $LOG; exit 1; }
cmake --build build/gpu --parallel >> $LOG 2>&1 || { tail -n 60 $LOG; exit 1; }

MODULE=$(echo build/gpu/_kernels*.so)
echo "== tests on the device"
"$PYTHON" benchmarks/gpu_check.py --module "$MODULE" --tests
echo "== measurements"
"$PYTHON" benchmarks/gpu_check.py --module "$MODULE"
