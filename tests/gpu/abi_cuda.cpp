/* abi_cuda.cpp - compile-only: cuda_driver.h against an official cuda.h. Names exist, parameters agree in
 * number, size and kind. */
#include "abi/cuda_driver.h"
#include <cstddef>
#include <cuda.h>
#include <type_traits>

template <class... A, class... B> constexpr bool same(int (*)(A...), CUresult (*)(B...)) {
  if constexpr (sizeof...(A) != sizeof...(B))
    return false;
  else
    return ((sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>) && ...);
}
#define CHECK(member, symbol, parameters)                                                                    \
  static_assert(same(decltype(cuda_driver::member){}, decltype(&symbol){}), #symbol);
CUDA_FUNCTIONS(CHECK)

static_assert(sizeof(cuda_copy2d) == sizeof(CUDA_MEMCPY2D) &&
                  offsetof(cuda_copy2d, from) == offsetof(CUDA_MEMCPY2D, srcDevice) &&
                  offsetof(cuda_copy2d, from_pitch) == offsetof(CUDA_MEMCPY2D, srcPitch) &&
                  offsetof(cuda_copy2d, to_type) == offsetof(CUDA_MEMCPY2D, dstMemoryType) &&
                  offsetof(cuda_copy2d, to) == offsetof(CUDA_MEMCPY2D, dstDevice) &&
                  offsetof(cuda_copy2d, to_pitch) == offsetof(CUDA_MEMCPY2D, dstPitch) &&
                  offsetof(cuda_copy2d, height) == offsetof(CUDA_MEMCPY2D, Height),
    "CUDA_MEMCPY2D");
static_assert(CUDA_ON_DEVICE == CU_MEMORYTYPE_DEVICE && CUDA_NO_MEMORY == CUDA_ERROR_OUT_OF_MEMORY &&
                  CUDA_NO_DEVICE == CUDA_ERROR_NO_DEVICE,
    "results");
static_assert(CUDA_HOST_PORTABLE == CU_MEMHOSTALLOC_PORTABLE &&
                  CUDA_HOST_MAPPED == CU_MEMHOSTALLOC_DEVICEMAP &&
                  CUDA_STREAM_NON_BLOCKING == CU_STREAM_NON_BLOCKING,
    "flags");
static_assert(static_cast<int>(CUDA_CAPTURE_THREAD) == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, "capture");
static_assert(CUDA_PROCESSORS == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT &&
                  CUDA_INTEGRATED == CU_DEVICE_ATTRIBUTE_INTEGRATED &&
                  CUDA_CAN_MAP == CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY &&
                  CUDA_MAJOR == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR &&
                  CUDA_MINOR == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    "attributes");
