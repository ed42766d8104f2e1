#!/bin/sh
# Compiles the TensorRT backend against NVIDIA's headers and runs it over stand-ins for libcuda and libnvinfer.
#   TENSORRT_INCLUDE=FOLDER CUDA_INCLUDE=FOLDER sh tests/check_tensorrt_compile.sh [BUILD_FOLDER]
# TENSORRT_INCLUDE: of NvInferRuntime.h (Debian package libnvinfer-headers-dev; include/ of github.com/NVIDIA/TensorRT),
#   or of TensorRT for RTX (include/ of its SDK): then the branch for RTX is compiled and run.
# CUDA_INCLUDE: of cuda.h and cuda_runtime_api.h (CUDA toolkit; pip packages nvidia-cuda-runtime and nvidia-cuda-crt).
# Exit 77: skipped, the reason is printed. No GPU is needed.
set -e
here=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-$(mktemp -d)}
for place in "${TENSORRT_INCLUDE:-/usr/include}" "/usr/include/$(uname -m)-linux-gnu"; do
  [ -f "$place/NvInferRuntime.h" ] && found=$place && break
done
[ -n "$found" ] || { echo "skipped: no NvInferRuntime.h; set TENSORRT_INCLUDE to the folder of TensorRT's headers"; exit 77; }
cuda=${CUDA_INCLUDE:-/usr/local/cuda/include}
[ -f "$cuda/cuda.h" ] || { echo "skipped: no cuda.h in $cuda; set CUDA_INCLUDE to the folder of CUDA's headers"; exit 77; }
generator=$(command -v ninja >/dev/null && echo Ninja || echo "Unix Makefiles")
echo "declarations of the driver against $cuda/cuda.h"
${CXX:-c++} -std=c++17 -Wall -Wextra -Werror -isystem "$cuda" -fsyntax-only "$here/tests/gpu/abi_cuda.cpp"
cmake -S "$here/runtime" -B "$build" -G "$generator" -DSPECC_TESTS=ON ${SANITIZE:+-DSPECC_SANITIZE=ON} -DTENSORRT_INCLUDE="$found" -DCUDA_INCLUDE="$cuda"
cmake --build "$build" --target specc specc_controls test_tensorrt stub_tensorrt stub_cuda stub_version test_gpu test_judge
ctest --test-dir "$build" -R '^(test_tensorrt|test_gpu|test_judge)$' --output-on-failure
