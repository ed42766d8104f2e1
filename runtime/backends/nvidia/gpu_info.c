/* gpu_info.c - what a program may ask about a GPU. */
#include "abi/cuda_driver.h"
#include "backends/nvidia/gpu_memory.h"
#include "core/io/error.h"
#include "specc_extend.h"
#include <stdio.h>
#include <string.h>

static int read_memory(const cuda_gpu *gpu, specc_gpu *out) {
  size_t total = 0, free_now = 0;
  int processors = 0;
  int code = cuda_enter(gpu);
  if (code) return code;
  code = cuda_check(gpu->driver, gpu->driver->memory_info(&free_now, &total),
      "could not tell its free memory", CUDA_NO_DRIVER);
  cuda_leave(gpu);
  if (!code) code = cuda_attribute(gpu, CUDA_PROCESSORS, &processors);
  out->memory = (int64_t)total, out->driver_free = (int64_t)free_now, out->processors = processors;
  out->available = gpu_find_room(gpu->integrated, out->driver_free, out->memory, NULL);
  return code;
}

int specc_gpu_info(int32_t index, specc_gpu *out) {
  cuda_gpu gpu;
  if (!out) return specc_error(SPECC_E_ARGUMENT, "specc_gpu_info needs a place for the answer");
  memset(out, 0, sizeof *out);
  int code = cuda_open(index, &gpu);
  if (!code) code = read_memory(&gpu, out);
  if (code) return cuda_close(&gpu), code;
  snprintf(out->name, sizeof out->name, "%s", gpu.name);
  memcpy(out->fingerprint, gpu.fingerprint, sizeof out->fingerprint);
  out->sm = gpu.sm, out->integrated = gpu.integrated, out->cuda = gpu.driver->version;
  cuda_close(&gpu);
  return SPECC_OK;
}
