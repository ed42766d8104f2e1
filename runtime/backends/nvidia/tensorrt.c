/* tensorrt.c - everything about a TensorRT engine that can be said before TensorRT sees it: is this a plan,
 * is it for this platform, this GPU and this version of the library. No header of NVIDIA's is needed here. */
#include "backends/nvidia/tensorrt.h"
#include "core/io/error.h"
#include <ctype.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LEAST_PLAN 1024 /* bytes: less than any engine's header and layers */
#if defined(__aarch64__)
  #define PLATFORM "linux-aarch64"
#elif defined(__x86_64__)
  #define PLATFORM "linux-x86_64"
#else
  #define PLATFORM "linux"
#endif

/* ------------------------------------------------------------------ numbers */
static int refuse_number(const char *name, int64_t value, int64_t low, int64_t high) {
  return specc_error(SPECC_E_ARGUMENT, "engine option %s is %lld; it must be from %lld to %lld", name,
      (long long)value, (long long)low, (long long)high);
}

static int check_sizes(const specc_tensorrt_options *o) {
  if (o->vocab < 1) return refuse_number("vocab", o->vocab, 1, INT32_MAX);
  if (o->layers < 1 || o->layers > 1024) return refuse_number("layers", o->layers, 1, 1024);
  if (o->kv_heads < 1 || o->kv_heads > 4096) return refuse_number("kv_heads", o->kv_heads, 1, 4096);
  if (o->head_dim < 1 || o->head_dim > 4096) return refuse_number("head_dim", o->head_dim, 1, 4096);
  if (o->n_widths < 1 || o->n_widths > SPECC_MAX_WIDTHS)
    return refuse_number("n_widths", o->n_widths, 1, SPECC_MAX_WIDTHS);
  for (int32_t i = 0; i < o->n_widths; i++) {
    int64_t low = i ? o->widths[i - 1] + 1LL : 1;
    if (o->widths[i] < low || o->widths[i] > 65536) return refuse_number("widths", o->widths[i], low, 65536);
  }
  int64_t slot = 8LL * o->layers * o->kv_heads * o->head_dim, widest = o->widths[o->n_widths - 1],
          most = ((int64_t)1 << 40) / slot;
  return o->capacity < widest || o->capacity > most ? refuse_number("capacity", o->capacity, widest, most)
                                                    : SPECC_OK;
}

static int check_options(const specc_tensorrt_options *o) {
  if (!o || !o->plan || !o->version || !o->platform)
    return specc_error(SPECC_E_ARGUMENT, "a TensorRT engine needs plan, version and platform");
  if (o->cache_type < SPECC_CACHE_F32 || o->cache_type > SPECC_CACHE_F8)
    return refuse_number("cache_type", o->cache_type, SPECC_CACHE_F32, SPECC_CACHE_F8);
  if (o->cache_type == SPECC_CACHE_F8 && !o->rows_out)
    return specc_error(SPECC_E_ARGUMENT,
        "a float8 cache is never written in place (no TensorRT does that); build the bundle again");
  if (o->sm < 30 || o->sm > 999) return refuse_number("sm", o->sm, 30, 999);
  return check_sizes(o);
}

/* ------------------------------------------------------------------ the plan */
/* Editors, mail and text-mode copies leave something that reads as text. */
static bool is_text(const unsigned char *bytes, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (!isprint(bytes[i]) && !isspace(bytes[i])) return false;
  return true;
}

static int map_plan(tensorrt_engine *e) {
  struct stat found;
  int file = open(e->options.plan, O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return specc_error(SPECC_E_IO,
        "there is no engine %s; check the path, or run `specc finalize` on this device", e->model);
  int bad = fstat(file, &found) || !S_ISREG(found.st_mode);
  e->plan_bytes = bad ? 0 : (size_t)found.st_size;
  void *bytes = e->plan_bytes ? mmap(NULL, e->plan_bytes, PROT_READ, MAP_PRIVATE, file, 0) : NULL;
  close(file);
  if (bytes == MAP_FAILED)
    return specc_error(SPECC_E_IO, "engine %s cannot be read; check the file's rights", e->model);
  e->plan = bytes;
  if (e->plan_bytes < LEAST_PLAN)
    return specc_error(SPECC_E_FORMAT,
        "engine %s has %zu bytes, so it is cut or empty; copy it again or run `specc finalize`", e->model,
        e->plan_bytes);
  if (is_text(bytes, 256))
    return specc_error(SPECC_E_FORMAT,
        "engine %s is text, not an engine; copy it again in binary mode or run `specc finalize`", e->model);
  return SPECC_OK;
}

static int check_platform(const tensorrt_engine *e) {
  if (!strcmp(e->options.platform, PLATFORM)) return SPECC_OK;
  return specc_error(SPECC_E_ENGINE,
      "engine %s was built for %s and this is " PLATFORM
      "; build the bundle for this device or run `specc finalize` on it",
      e->model, e->options.platform);
}

static int check_sm(const tensorrt_engine *e) {
  if (e->options.sm == e->gpu.sm) return SPECC_OK;
  return specc_error(SPECC_E_ENGINE,
      "engine %s was built for SM %d and this GPU (%s) is SM %d; build the bundle for it or run `specc "
      "finalize` here",
      e->model, e->options.sm, e->gpu.name, e->gpu.sm);
}

/* ------------------------------------------------------------------ the library */
static void *load_library(const char *path, int rtx, char *reason, size_t n_reason) {
  static const char *const usual[2][3] = {{"libnvinfer.so.10", "libnvinfer.so.11", "libnvinfer.so"},
      {"libtensorrt_rtx.so.1", "libtensorrt_rtx.so", "libtensorrt_rtx.so.2"}};
  const char *const *names = path ? &path : usual[rtx != 0];
  void *handle = NULL;
  for (int i = 0; !handle && i < (path ? 1 : 3); i++) {
    handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); /* its threads outlive a close */
    if (!handle && !i) snprintf(reason, n_reason, "%s", dlerror());
  }
  return handle;
}

static int read_number(void *handle, const char *symbol) {
  int32_t (*get)(void) = NULL;
  void *found = dlsym(handle, symbol);
  memcpy(&get, &found, sizeof get);
  return get ? get() : -1;
}

/* The four numbers have functions of their own since 8.5; the version as one number is older and differs by
 * generation. */
static bool read_version(void *handle, char *version, size_t n) {
  int parts[4] = {read_number(handle, "getInferLibMajorVersion"),
      read_number(handle, "getInferLibMinorVersion"), read_number(handle, "getInferLibPatchVersion"),
      read_number(handle, "getInferLibBuildVersion")};
  int whole = read_number(handle, "getInferLibVersion");
  if (parts[0] < 0 && whole > 0)
    parts[0] = whole / 10000, parts[1] = whole / 100 % 100, parts[2] = whole % 100;
  if (parts[0] < 0) return false;
  if (parts[3] < 0)
    snprintf(version, n, "%d.%d.%d", parts[0], parts[1], parts[2]);
  else
    snprintf(version, n, "%d.%d.%d.%d", parts[0], parts[1], parts[2], parts[3]);
  return true;
}

static int open_library(const char *path, int rtx, void **handle, char *version, size_t n) {
  char reason[256] = "";
  *handle = load_library(path, rtx, reason, sizeof reason);
  if (!*handle)
    return specc_error(SPECC_E_ENGINE, "%s cannot be loaded (%s); install %s",
        rtx ? "TensorRT for RTX" : "TensorRT", reason,
        rtx ? "the package onnxruntime-ep-nv-tensorrt-rtx-cu13 or NVIDIA's SDK"
            : "it (on Jetson: JetPack's tensorrt packages; else the package tensorrt)");
  if (read_version(*handle, version, n)) return SPECC_OK;
  return specc_error(SPECC_E_ENGINE,
      "%s is no TensorRT library: it has no getInferLibVersion; name libnvinfer or libtensorrt_rtx",
      path ? path : "the library found");
}

int specc_tensorrt_version(const char *path, int32_t rtx, char *version, size_t n_version) {
  void *handle = NULL;
  if (!version || !n_version)
    return specc_error(SPECC_E_ARGUMENT, "specc_tensorrt_version needs a place for the answer");
  int code = open_library(path, rtx, &handle, version, n_version);
  if (handle) dlclose(handle); /* stays mapped: RTLD_NODELETE */
  return code;
}

static int check_version(const tensorrt_engine *e) {
  int built[3] = {-1, -1, -1}, here[3] = {-2, -2, -2};
  sscanf(e->options.version, "%d.%d.%d", &built[0], &built[1], &built[2]);
  sscanf(e->version, "%d.%d.%d", &here[0], &here[1], &here[2]);
  if (!memcmp(built, here, sizeof here)) return SPECC_OK;
  return specc_error(SPECC_E_ENGINE,
      "engine %s was built by TensorRT %s and this library is %s; install that version or run `specc "
      "finalize` here",
      e->model, e->options.version, e->version);
}

/* ------------------------------------------------------------------ what a program calls */
#ifndef SPECC_TENSORRT
const char *specc_tensorrt_headers(void) {
  return NULL;
}

int tensorrt_open(tensorrt_engine *e, specc_backend *backend) {
  (void)backend;
  int code = specc_error(SPECC_E_UNSUPPORTED,
      "engine %s fits this device, but this libspecc was compiled without TensorRT's headers; compile it "
      "with cmake -DTENSORRT_INCLUDE=FOLDER (docs/jetson-orin.md)",
      e->model);
  tensorrt_engine_free(e);
  return code;
}
#endif

static int prepare(tensorrt_engine *e, const specc_tensorrt_options *o) {
  const char *name = strrchr(o->plan, '/');
  snprintf(e->model, sizeof e->model, "%s", name ? name + 1 : o->plan);
  e->options = *o;
  int code = map_plan(e);
  if (!code) code = check_platform(e);
  if (!code) code = cuda_open(o->gpu, &e->gpu);
  if (!code) code = check_sm(e);
  if (!code) code = open_library(o->library, o->rtx, &e->library, e->version, sizeof e->version);
  return code ? code : check_version(e);
}

int specc_tensorrt_backend(const specc_tensorrt_options *options, specc_backend *backend) {
  int code = check_options(options);
  if (code) return code;
  if (!backend) return specc_error(SPECC_E_ARGUMENT, "specc_tensorrt_backend needs a place for the backend");
  tensorrt_engine *e = calloc(1, sizeof *e);
  if (!e) return specc_error(SPECC_E_MEMORY, "no memory left for an engine; close other programs");
  code = prepare(e, options);
  if (code) return tensorrt_engine_free(e), code;
  return tensorrt_open(e, backend);
}
