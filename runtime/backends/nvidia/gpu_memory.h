/* gpu_memory.h - how much memory an engine may take on a GPU. */
#ifndef SPECC_GPU_MEMORY_H
#define SPECC_GPU_MEMORY_H
#include "abi/cuda_driver.h"
#ifdef __cplusplus
extern "C" {
#endif

/* Bytes that may be taken now, a reserve left. On an integrated GPU the driver's free figure is
 * MemFree, which counts pages of files just read as used; MemAvailable is the true one. meminfo: text of
 * /proc/meminfo, NULL to read it. */
int64_t gpu_find_room(int integrated, int64_t driver_free, int64_t driver_total, const char *meminfo);
/* SPECC_E_MEMORY with both numbers unless `needed` bytes fit. */
int gpu_check_room(int integrated, int64_t driver_free, int64_t driver_total, const char *meminfo,
    int64_t needed, const char *what);
int gpu_require(const cuda_gpu *gpu, int64_t needed, const char *what);

#ifdef __cplusplus
}
#endif
#endif
