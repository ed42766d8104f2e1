/* gpu_memory.c - how much memory an engine may take: the driver's figure on a card of its own, MemAvailable
 * where the GPU shares the board's memory. */
#include "backends/nvidia/gpu_memory.h"
#include "core/io/error.h"
#include <stdio.h>
#include <string.h>

#define MIB ((int64_t)1 << 20)
#define LEAST_RESERVE (256 * MIB) /* left to the system, or a sixteenth where that is more */

/* Bytes of a line "MemFree:   1024 kB"; -1 without it. */
static int64_t read_line(const char *text, const char *key) {
  const char *at = strstr(text, key);
  long long kib;
  return at && sscanf(at + strlen(key), ": %lld kB", &kib) == 1 ? (int64_t)kib * 1024 : -1;
}

static const char *read_meminfo(char *text, size_t n) {
  FILE *file = fopen("/proc/meminfo", "re");
  size_t got = file ? fread(text, 1, n - 1, file) : 0;
  if (file) fclose(file);
  text[got] = 0;
  return text;
}

static int64_t compute_reserve(int64_t total) {
  return total / 16 > LEAST_RESERVE ? total / 16 : LEAST_RESERVE;
}

int64_t gpu_find_room(int integrated, int64_t driver_free, int64_t driver_total, const char *meminfo) {
  char text[8192];
  int64_t free_now = driver_free, total = driver_total;
  if (integrated) {
    if (!meminfo) meminfo = read_meminfo(text, sizeof text);
    int64_t available = read_line(meminfo, "MemAvailable"), whole = read_line(meminfo, "MemTotal");
    if (available >= 0) free_now = available;
    if (whole >= 0) total = whole;
  }
  int64_t room = free_now - compute_reserve(total);
  return room > 0 ? room : 0;
}

int gpu_check_room(int integrated, int64_t driver_free, int64_t driver_total, const char *meminfo,
    int64_t needed, const char *what) {
  char text[8192];
  if (integrated && !meminfo) meminfo = read_meminfo(text, sizeof text);
  int64_t room = gpu_find_room(integrated, driver_free, driver_total, meminfo);
  if (needed <= room) return SPECC_OK;
  if (!integrated)
    return specc_error(SPECC_E_MEMORY,
        "%s needs %lld MB of GPU memory, but %lld MB may be taken (%lld MB free of %lld MB); close other "
        "programs, lower the context or use smaller weights",
        what, (long long)(needed / MIB), (long long)(room / MIB), (long long)(driver_free / MIB),
        (long long)(driver_total / MIB));
  return specc_error(SPECC_E_MEMORY,
      "%s needs %lld MB of the memory that CPU and GPU share, but %lld MB may be taken (MemAvailable %lld "
      "MB, MemFree %lld MB); close other programs, lower the context or use smaller weights",
      what, (long long)(needed / MIB), (long long)(room / MIB),
      (long long)(read_line(meminfo, "MemAvailable") / MIB),
      (long long)(read_line(meminfo, "MemFree") / MIB));
}

int gpu_require(const cuda_gpu *gpu, int64_t needed, const char *what) {
  size_t free_now = 0, total = 0;
  int code = cuda_check(gpu->driver, gpu->driver->memory_info(&free_now, &total),
      "could not tell its free memory", "start the program again");
  return code ? code : gpu_check_room(gpu->integrated, (int64_t)free_now, (int64_t)total, NULL, needed, what);
}
