/* cuda_driver.c - loads libcuda, opens a GPU, says in one sentence what is missing. */
#include "abi/cuda_driver.h"
#include "core/io/error.h"
#include "core/io/process.h"
#include "core/io/sha256.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define OLD_DRIVER "install a newer driver (on Jetson: JetPack 6 or 7)"

static cuda_driver loaded;
static bool is_loaded;
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

/* ------------------------------------------------------------------ the library */
typedef struct entry {
  size_t at;
  const char *symbol;
} entry;
#define CUDA_ENTRY(member, symbol, parameters) {offsetof(cuda_driver, member), #symbol},
static const entry entries[] = {CUDA_FUNCTIONS(CUDA_ENTRY)};
#undef CUDA_ENTRY

static int read_functions(void *handle, cuda_driver *d) {
  for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
    void *symbol = dlsym(handle, entries[i].symbol);
    if (!symbol)
      return specc_error(SPECC_E_ENGINE,
          "the NVIDIA driver's libcuda.so.1 has no %s, so it is too old; " OLD_DRIVER, entries[i].symbol);
    memcpy((char *)d + entries[i].at, &symbol, sizeof symbol);
  }
  return SPECC_OK;
}

static int check_version(cuda_driver *d) {
  int result = d->driver_version(&d->version);
  if (result) return cuda_check(d, result, "could not tell its version", CUDA_NO_DRIVER);
  if (d->version >= CUDA_OLDEST) return SPECC_OK;
  return specc_error(SPECC_E_ENGINE,
      "the NVIDIA driver supports CUDA %d.%d, but %d.%d or later is needed; " OLD_DRIVER, d->version / 1000,
      d->version % 1000 / 10, CUDA_OLDEST / 1000, CUDA_OLDEST % 1000 / 10);
}

static int load(void) {
  void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!handle)
    return specc_error(SPECC_E_ENGINE, "there is no NVIDIA driver here: %s; " CUDA_NO_DRIVER, dlerror());
  int (*version)(int *) = NULL;
  /* before all others, so that an old driver is called old */
  void *symbol = dlsym(handle, "cuDriverGetVersion");
  memcpy(&version, &symbol, sizeof version);
  loaded.driver_version = version;
  int code = version ? check_version(&loaded) : SPECC_OK;
  if (!code) code = read_functions(handle, &loaded);
  if (!code)
    code = cuda_check(&loaded, loaded.init(0), "did not start",
        "check that the GPU is visible (nvidia-smi; CUDA_VISIBLE_DEVICES)");
  dlclose(handle); /* stays mapped: RTLD_NODELETE */
  is_loaded = !code;
  return code;
}

int cuda_load(const cuda_driver **out) {
  pthread_mutex_lock(&loading);
  int code = is_loaded ? SPECC_OK : load();
  pthread_mutex_unlock(&loading);
  *out = &loaded;
  return code;
}

int cuda_check(const cuda_driver *d, int result, const char *action, const char *advice) {
  const char *text = NULL;
  if (!result) return SPECC_OK;
  if (!d->error_string || d->error_string(result, &text) || !text) text = "unknown error";
  return specc_error(result == CUDA_NO_MEMORY ? SPECC_E_MEMORY : SPECC_E_ENGINE,
      "the NVIDIA driver %s (CUDA error %d, %s); %s", action, result, text, advice);
}

/* ------------------------------------------------------------------ a GPU */
int cuda_attribute(const cuda_gpu *gpu, int attribute, int *value) {
  return cuda_check(gpu->driver, gpu->driver->device_attribute(value, attribute, gpu->device),
      "could not describe the GPU", CUDA_NO_DRIVER);
}

/* First line of a small file; empty where it cannot be read. */
static void read_first_line(const char *path, char *out, size_t n) {
  FILE *file = fopen(path, "re");
  if (!file || !fgets(out, (int)n, file)) out[0] = 0;
  if (file) fclose(file);
  out[strcspn(out, "\n")] = 0;
}

/* A certificate holds for this kind of GPU under this driver: kernels are chosen by both. */
static void identify(cuda_gpu *gpu) {
  char text[512], kernel[160], board[160];
  specc_sha256 h;
  read_first_line("/proc/driver/nvidia/version", kernel, sizeof kernel);
  read_first_line("/etc/nv_tegra_release", board, sizeof board);
  int n = snprintf(text, sizeof text, "%s\nsm %d\ncuda %d\n%s\n%s\n", gpu->name, gpu->sm,
      gpu->driver->version, kernel, board);
  specc_sha256_begin(&h);
  specc_sha256_add(&h, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
  specc_sha256_end(&h, gpu->fingerprint);
}

static int find_device(int32_t index, cuda_gpu *gpu) {
  int count = 0;
  int code =
      cuda_check(gpu->driver, gpu->driver->device_count(&count), "could not count the GPUs", CUDA_NO_DRIVER);
  if (!code && (index < 0 || index >= count))
    code = specc_error(SPECC_E_ENGINE,
        "GPU number %d was asked for, but the driver shows %d; choose another (CUDA_VISIBLE_DEVICES hides "
        "some)",
        index, count);
  return code ? code
              : cuda_check(gpu->driver, gpu->driver->device_get(&gpu->device, index),
                    "could not find the GPU", CUDA_NO_DRIVER);
}

static int describe(cuda_gpu *gpu) {
  int major = 0, minor = 0;
  int code = cuda_check(gpu->driver, gpu->driver->device_name(gpu->name, sizeof gpu->name, gpu->device),
      "could not name the GPU", CUDA_NO_DRIVER);
  if (!code) code = cuda_attribute(gpu, CUDA_MAJOR, &major);
  if (!code) code = cuda_attribute(gpu, CUDA_MINOR, &minor);
  if (!code) code = cuda_attribute(gpu, CUDA_INTEGRATED, &gpu->integrated);
  gpu->sm = 10 * major + minor;
  if (!code) identify(gpu);
  return code;
}

int cuda_open(int32_t index, cuda_gpu *gpu) {
  memset(gpu, 0, sizeof *gpu);
  gpu->opener = (int)getpid();
  int code = cuda_load(&gpu->driver);
  if (!code) code = find_device(index, gpu);
  if (!code) code = describe(gpu);
  if (code) return code;
  return cuda_check(gpu->driver, gpu->driver->context_retain(&gpu->context, gpu->device),
      "could not open the GPU", "close other programs that use it");
}

void cuda_close(cuda_gpu *gpu) {
  if (gpu->context && SPECC_IS_OPENER(gpu->opener)) gpu->driver->context_release(gpu->device);
  gpu->context = NULL;
}

int cuda_enter(const cuda_gpu *gpu) {
  if (!SPECC_IS_OPENER(gpu->opener))
    return specc_error(SPECC_E_UNSUPPORTED, SPECC_FORKED, gpu->opener, (int)getpid());
  return cuda_check(gpu->driver, gpu->driver->context_push(gpu->context), "could not enter the GPU's context",
      "start the program again");
}

void cuda_leave(const cuda_gpu *gpu) {
  cuda_context old;
  gpu->driver->context_pop(&old);
}
