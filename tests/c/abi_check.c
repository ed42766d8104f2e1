/* abi_check.c - compiles only if every place and signature in ort_abi.h is that of an official
 * onnxruntime_c_api.h. Configure with -DORT_HEADER=<folder that holds it>. */
#include "abi/ort_abi.h"
#include <onnxruntime_c_api.h>
#include <stdio.h>
#include <string.h>

#define CHECK(place, name, returns, parameters)                                                              \
  _Static_assert(offsetof(OrtApi, name) == (place) * sizeof(void *), "place of " #name);                     \
  _Static_assert(__builtin_types_compatible_p(__typeof__(((OrtApi *)0)->name), returns(*) parameters),       \
      "signature of " #name);
ORT_FUNCTIONS(CHECK)

_Static_assert(offsetof(OrtApiBase, GetApi) == offsetof(ort_base, GetApi), "place of GetApi");
_Static_assert(offsetof(OrtApiBase, GetVersionString) == offsetof(ort_base, GetVersionString),
    "place of GetVersionString");
_Static_assert(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT == ORT_FLOAT &&
                   ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32 == ORT_INT32 &&
                   ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 == ORT_INT64,
    "element types");
_Static_assert(ORT_NO_SUCHFILE == ORT_CODE_NO_FILE && ORT_NO_MODEL == ORT_CODE_NO_MODEL &&
                   ORT_INVALID_PROTOBUF == ORT_CODE_BAD_PROTOBUF && ORT_INVALID_GRAPH == ORT_CODE_BAD_GRAPH,
    "error codes");
_Static_assert(ORT_LOGGING_LEVEL_FATAL == ORT_SEVERITY_FATAL && OrtArenaAllocator == ORT_ARENA_ALLOCATOR &&
                   OrtMemTypeDefault == ORT_MEMORY_DEFAULT,
    "severity and memory");

#define ONE(place, name, returns, parameters) +1
int main(void) {
  printf("API %d: %d functions agree in place and signature\n", ORT_API_VERSION, 0 ORT_FUNCTIONS(ONE));
  return 0;
}
