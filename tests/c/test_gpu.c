/* test_gpu.c - what is said without a GPU: drivers, memory (R50), engines that do not fit (R42). Runs over
 * stub_cuda.c; with the argument `none` over no driver at all. */
#include "backends/nvidia/gpu_cache.h"
#include "backends/nvidia/gpu_memory.h"
#include "expect.h"
#include <dlfcn.h>
#include <unistd.h>

#define MIB ((int64_t)1 << 20)

static int no_driver(void) {
  specc_gpu gpu;
  if (dlopen("libcuda.so.1", RTLD_LAZY)) return printf("a driver is installed here\n"), SKIP;
  EXPECT_ERROR(specc_gpu_info(0, &gpu), SPECC_E_ENGINE, "there is no NVIDIA driver here");
  EXPECT_ERROR(specc_gpu_info(0, &gpu), SPECC_E_ENGINE, "JetPack");
  return failures != 0;
}

static void drivers(void) {
  specc_gpu gpu;
  setenv("STUB_CUDA_VERSION", "11040", 1);
  EXPECT_ERROR(specc_gpu_info(0, &gpu), SPECC_E_ENGINE, "supports CUDA 11.4, but 12.0");
  unsetenv("STUB_CUDA_VERSION");
  setenv("STUB_CUDA_COUNT", "0", 1);
  EXPECT_ERROR(specc_gpu_info(0, &gpu), SPECC_E_ENGINE, "no CUDA-capable device");
  unsetenv("STUB_CUDA_COUNT");
  EXPECT(!specc_gpu_info(0, &gpu));
  EXPECT(!strcmp(gpu.name, "Stub GPU") && gpu.sm == 87 && gpu.cuda == 12060 && gpu.processors == 8 &&
         strlen(gpu.fingerprint) == 64);
  EXPECT(gpu.memory == 8192 * MIB && gpu.available == (7000 - 512) * MIB && gpu.driver_free == 7000 * MIB &&
         !gpu.integrated);
  EXPECT_ERROR(specc_gpu_info(3, &gpu), SPECC_E_ENGINE, "GPU number 3 was asked for, but the driver shows 1");
  EXPECT_ERROR(specc_gpu_info(0, NULL), SPECC_E_ARGUMENT, "a place");
}

/* R50: page cache is not taken memory where CPU and GPU share it, in both directions. */
static void shared_memory(void) {
  const char *cached = "MemTotal: 8000000 kB\nMemFree: 1000000 kB\nMemAvailable: 6000000 kB\n";
  const char *taken = "MemTotal: 8000000 kB\nMemFree: 5000000 kB\nMemAvailable: 900000 kB\n";
  int64_t free_now = 1000000 * 1024LL, total = 8000000 * 1024LL;
  EXPECT(gpu_find_room(1, free_now, total, cached) == (6000000 - 500000) * 1024LL);
  EXPECT(gpu_find_room(0, free_now, total, cached) == (1000000 - 500000) * 1024LL);
  EXPECT(!gpu_check_room(1, free_now, total, cached, 3000 * MIB, "the engine"));
  EXPECT_ERROR(gpu_check_room(1, 5000000 * 1024LL, total, taken, 3000 * MIB, "the engine"), SPECC_E_MEMORY,
      "MemAvailable 878 MB, MemFree 4882 MB");
  EXPECT_ERROR(gpu_check_room(0, free_now, total, cached, 3000 * MIB, "the engine"), SPECC_E_MEMORY,
      "488 MB may be taken (976 MB free of 7812 MB)");
  EXPECT(gpu_find_room(1, free_now, total, "nonsense") == free_now - total / 16);
  EXPECT(gpu_find_room(1, 0, total, "MemAvailable: 10 kB\n") == 0);
}

#if defined(__aarch64__)
  #define HERE "linux-aarch64"
  #define ELSEWHERE "linux-x86_64"
#else
  #define HERE "linux-x86_64"
  #define ELSEWHERE "linux-aarch64"
#endif

static void write_plan(const char *path, size_t n, int text) {
  FILE *file = fopen(path, "wb");
  for (size_t i = 0; i < n; i++) fputc(text ? "engine\r\n"[i % 8] : (int)(i * 37 % 256), file);
  fclose(file);
}

/* R42: a file that is no engine. */
static void damaged_engines(const specc_tensorrt_options *good) {
  specc_backend backend;
  write_plan(good->plan, 0, 0);
  EXPECT_ERROR(specc_tensorrt_backend(good, &backend), SPECC_E_FORMAT, "has 0 bytes");
  write_plan(good->plan, 700, 0);
  EXPECT_ERROR(specc_tensorrt_backend(good, &backend), SPECC_E_FORMAT, "cut or empty");
  write_plan(good->plan, 5000, 1);
  EXPECT_ERROR(specc_tensorrt_backend(good, &backend), SPECC_E_FORMAT, "is text, not an engine");
}

/* R42: an engine for another platform, GPU or version, a library that is none, impossible options. */
static void foreign_engines(const specc_tensorrt_options *good) {
  specc_backend backend;
  specc_tensorrt_options o = *good;
  write_plan(good->plan, 5000, 0);
  o.platform = ELSEWHERE;
  EXPECT_ERROR(specc_tensorrt_backend(&o, &backend), SPECC_E_ENGINE, "was built for linux-");
  o = *good, o.sm = 86;
  EXPECT_ERROR(specc_tensorrt_backend(&o, &backend), SPECC_E_ENGINE,
      "was built for SM 86 and this GPU (Stub GPU) is SM 87");
  o = *good, o.version = "8.6.1.6";
  EXPECT_ERROR(specc_tensorrt_backend(&o, &backend), SPECC_E_ENGINE,
      "was built by TensorRT 8.6.1.6 and this library is 10.3.0.30");
  o = *good, o.library = "/nonexistent/libnvinfer.so.10";
  EXPECT_ERROR(specc_tensorrt_backend(&o, &backend), SPECC_E_ENGINE, "TensorRT cannot be loaded");
  o = *good, o.library = "libm.so.6";
  EXPECT_ERROR(specc_tensorrt_backend(&o, &backend), SPECC_E_ENGINE, "is no TensorRT library");
  o = *good, o.plan = "/nonexistent/x.plan";
  EXPECT_ERROR(specc_tensorrt_backend(&o, &backend), SPECC_E_IO, "there is no engine x.plan");
  o = *good, o.capacity = 4;
  EXPECT_ERROR(specc_tensorrt_backend(&o, &backend), SPECC_E_ARGUMENT, "capacity is 4");
  o = *good, o.cache_type = 9;
  EXPECT_ERROR(specc_tensorrt_backend(&o, &backend), SPECC_E_ARGUMENT, "cache_type is 9");
  o = *good, o.cache_type = SPECC_CACHE_F8;
  EXPECT_ERROR(specc_tensorrt_backend(&o, &backend), SPECC_E_ARGUMENT, "never written in place");
  o = *good, o.plan = NULL;
  EXPECT_ERROR(specc_tensorrt_backend(&o, &backend), SPECC_E_ARGUMENT, "needs plan");
  if (!specc_tensorrt_headers())
    EXPECT_ERROR(
        specc_tensorrt_backend(good, &backend), SPECC_E_UNSUPPORTED, "compiled without TensorRT's headers");
}

static void engines(const char *library) {
  char path[] = "/tmp/specc-plan-XXXXXX";
  close(mkstemp(path));
  specc_tensorrt_options good = {.plan = path,
      .library = library,
      .version = "10.3.0.30",
      .platform = HERE,
      .sm = 87,
      .cache_type = SPECC_CACHE_F16,
      .vocab = 100,
      .layers = 2,
      .kv_heads = 1,
      .head_dim = 8,
      .capacity = 72,
      .n_widths = 2,
      .widths = {1, 8}};
  damaged_engines(&good);
  foreign_engines(&good);
  unlink(path);
}

static void versions(const char *library) {
  char version[32];
  EXPECT(!specc_tensorrt_version(library, 0, version, sizeof version) && !strcmp(version, "10.3.0.30"));
  EXPECT_ERROR(specc_tensorrt_version("/nonexistent/lib.so", 1, version, sizeof version), SPECC_E_ENGINE,
      "TensorRT for RTX cannot be loaded");
}

/* One item of a cache of each type: rounded to the nearest, and a finite number stays finite. */
static void items(void) {
  static const struct {
    float value;
    uint32_t f16, bf16, f8;
  } cases[] = {{0, 0, 0, 0}, {1, 0x3c00, 0x3f80, 0x38}, {-1.5f, 0xbe00, 0xbfc0, 0xbc},
      {256, 0x5c00, 0x4380, 0x78}, {448, 0x5f00, 0x43e0, 0x7e}, {1e30f, 0x7bff, 0x714a, 0x7e},
      {1.0625f, 0x3c40, 0x3f88, 0x38}, {1.1875f, 0x3cc0, 0x3f98, 0x3a}, {0x1p-9f, 0x1800, 0x3b00, 1},
      {0x1.8p-9f, 0x1a00, 0x3b40, 2}, {0x1.fp-7f, 0x23c0, 0x3c78, 8}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    EXPECT(cache_bits(SPECC_CACHE_F16, cases[i].value) == cases[i].f16);
    EXPECT(cache_bits(SPECC_CACHE_BF16, cases[i].value) == cases[i].bf16);
    EXPECT(cache_bits(SPECC_CACHE_F8, cases[i].value) == cases[i].f8);
  }
  EXPECT(cache_item(SPECC_CACHE_F32) == 4 && cache_item(SPECC_CACHE_BF16) == 2 &&
         cache_item(SPECC_CACHE_F8) == 1);
}

int main(int n, char **arguments) {
  if (n > 1 && !strcmp(arguments[1], "none")) return no_driver();
  const char *library = getenv("STUB_TENSORRT");
  shared_memory();
  items();
  if (!library) return printf("STUB_TENSORRT names no stub\n"), failures ? 1 : SKIP;
  drivers();
  engines(library);
  versions(library);
  return failures != 0;
}
