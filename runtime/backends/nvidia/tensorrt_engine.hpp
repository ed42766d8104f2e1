/* tensorrt_engine.hpp - the first half of tensorrt.cpp, which alone includes it: one engine, what its tensors
 * and profiles must be, and how it is loaded and released. */
#ifndef SPECC_TENSORRT_ENGINE_HPP
#define SPECC_TENSORRT_ENGINE_HPP
#include "backends/nvidia/gpu_judge.h"
#include "backends/nvidia/gpu_memory.h"
#include "backends/nvidia/tensorrt.h"
#include "core/io/process.h"
#include <NvInferRuntime.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <mutex>
#include <new>

#define AGAIN "run `specc finalize` on this device, or build the bundle again"
#define CLOSE_OTHERS "lower the context or close other programs"
#define MOST_ROWS 17 /* of a round: K + 1 */

namespace {
using nvinfer1::DataType;
using nvinfer1::Dims;
using nvinfer1::ICudaEngine;
using nvinfer1::IExecutionContext;
using nvinfer1::IRuntime;
using nvinfer1::OptProfileSelector;
using nvinfer1::TensorIOMode;

#ifdef TRT_MAJOR_RTX
constexpr bool is_rtx = true;
#else
constexpr bool is_rtx = false;
#endif

template <class F> int guarded(F body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc &) {
    return tensorrt_error(SPECC_E_MEMORY, "no memory left for TensorRT; " CLOSE_OTHERS);
  } catch (const std::exception &error) {
    return tensorrt_error(SPECC_E_ENGINE, "TensorRT failed (%.400s); " AGAIN, error.what());
  } catch (...) {
    return tensorrt_error(SPECC_E_ENGINE, "TensorRT failed without a reason; " AGAIN);
  }
}

/* Keeps the last error that TensorRT logs for our sentence; prints nothing. */
class Log : public nvinfer1::ILogger {
public:
  void log(Severity severity, const char *text) noexcept override {
    if (severity > Severity::kERROR) return;
    std::lock_guard<std::mutex> hold(lock);
    std::snprintf(last, sizeof last, "%s", text);
    for (char *p = last; *p; p++)
      if (static_cast<unsigned char>(*p) < 0x20) *p = ' ';
  }
  void take(char *out, std::size_t n) {
    std::lock_guard<std::mutex> hold(lock);
    std::snprintf(out, n, "%s", last[0] ? last : "no reason given");
    last[0] = 0;
  }

private:
  std::mutex lock;
  char last[320] = "";
};

struct Engine {
  tensorrt_engine *given; /* options, GPU, library, path */
  Log log;
  IRuntime *runtime = nullptr;
  ICudaEngine *engine = nullptr;
  gpu_kernels kernels{};
  int64_t workspace = 0; /* bytes of the hungriest profile */
  explicit Engine(tensorrt_engine *g) : given(g) {}
  const specc_tensorrt_options &o() const {
    return given->options;
  }
  const cuda_driver *driver() const {
    return given->gpu.driver;
  }
  int32_t widest() const {
    return o().widths[o().n_widths - 1];
  }
};

int failed(Engine *e, int code, const char *action) {
  char reason[320];
  e->log.take(reason, sizeof reason);
  return tensorrt_error(
      code, "TensorRT %s %s %s (%s); " AGAIN, e->given->version, action, e->given->model, reason);
}

/* ------------------------------------------------------------------ what the engine must be */
/* What a tensor of the engine must be; -1 in dims: rows. */
struct Rule {
  const char *name;
  TensorIOMode mode;
  DataType type;
  int32_t rank;
  int64_t dims[4];
};

DataType cache_type(const Engine *e) {
  /* by SPECC_CACHE_ */
  constexpr DataType types[] = {DataType::kFLOAT, DataType::kHALF, DataType::kBF16, DataType::kFP8};
  return types[e->o().cache_type];
}

int refuse(const Engine *e, const char *name, const char *what) {
  return tensorrt_error(SPECC_E_FORMAT, "engine %s: tensor %s %s; " AGAIN, e->given->model, name, what);
}

int check_tensor(const Engine *e, const Rule &r) {
  if (e->engine->getTensorIOMode(r.name) != r.mode)
    return refuse(e, r.name, r.mode == TensorIOMode::kINPUT ? "is no input" : "is no output");
  if (e->engine->getTensorDataType(r.name) != r.type) return refuse(e, r.name, "is of another type");
  if (e->engine->getTensorLocation(r.name) != nvinfer1::TensorLocation::kDEVICE)
    return refuse(e, r.name, "must be a shape on the CPU, not data");
  Dims dims = e->engine->getTensorShape(r.name);
  if (dims.nbDims != r.rank) return refuse(e, r.name, "has another number of dimensions");
  for (int32_t i = 0; i < r.rank; i++)
    if (dims.d[i] >= 0 && dims.d[i] != r.dims[i] && r.dims[i] >= 0)
      return refuse(e, r.name, "has another size than the manifest says");
  return SPECC_OK;
}

int check_caches(const Engine *e) {
  const specc_tensorrt_options &o = e->o();
  char name[32];
  int code = SPECC_OK;
  for (int32_t i = 0; !code && i < 4 * o.layers; i++) {
    bool out = i % 4 >= 2;
    std::snprintf(name, sizeof name, "%s_%c.%d",
        !out         ? "past"
        : o.rows_out ? "rows"
                     : "present",
        i % 2 ? 'v' : 'k', i / 4);
    Rule r{name, out ? TensorIOMode::kOUTPUT : TensorIOMode::kINPUT, cache_type(e), 4,
        {1, o.kv_heads, out && o.rows_out ? -1 : o.capacity, o.head_dim}};
    code = check_tensor(e, r);
  }
  return code;
}

int check_signature(const Engine *e) {
  const specc_tensorrt_options &o = e->o();
  const Rule rules[] = {{"input_ids", TensorIOMode::kINPUT, DataType::kINT64, 2, {1, -1}},
      {"past_len", TensorIOMode::kINPUT, DataType::kINT64, 1, {1}},
      {"position", TensorIOMode::kINPUT, DataType::kINT64, 2, {1, -1}},
      {"logit_rows", TensorIOMode::kINPUT, DataType::kINT64, 1, {-1}},
      {"logits", TensorIOMode::kOUTPUT, DataType::kFLOAT, 2, {-1, o.vocab}},
      {"hidden", TensorIOMode::kOUTPUT, DataType::kFLOAT, 2, {-1, o.hidden}}};
  int32_t n = o.hidden ? 6 : 5, wanted = n + 4 * o.layers, got = e->engine->getNbIOTensors();
  int code = SPECC_OK;
  for (int32_t i = 0; !code && i < n; i++) code = check_tensor(e, rules[i]);
  if (!code) code = check_caches(e);
  if (code || got == wanted) return code;
  return tensorrt_error(
      SPECC_E_FORMAT, "engine %s has %d inputs and outputs, not %d; " AGAIN, e->given->model, got, wanted);
}

/* Profile j is width j, and nothing but it: smallest, likeliest and largest shape are one. */
int check_profiles(const Engine *e) {
  const specc_tensorrt_options &o = e->o();
  int32_t n = e->engine->getNbOptimizationProfiles();
  if (n != o.n_widths)
    return tensorrt_error(SPECC_E_FORMAT,
        "engine %s has %d profiles, but the manifest lists %d widths; " AGAIN, e->given->model, n,
        o.n_widths);
  for (int32_t j = 0; j < n; j++)
    for (OptProfileSelector which :
        {OptProfileSelector::kMIN, OptProfileSelector::kOPT, OptProfileSelector::kMAX}) {
      Dims dims = e->engine->getProfileShape("input_ids", j, which);
      long long rows = dims.nbDims == 2 ? static_cast<long long>(dims.d[1]) : -1;
      if (rows != o.widths[j])
        return tensorrt_error(SPECC_E_FORMAT,
            "engine %s takes %lld rows in profile %d, but the manifest says %d; " AGAIN, e->given->model,
            rows, j, o.widths[j]);
    }
  return SPECC_OK;
}

/* ------------------------------------------------------------------ loading */
int start_runtime(Engine *e) {
  void *(*create)(void *, int32_t) = nullptr;
  void *symbol = dlsym(e->given->library, "createInferRuntime_INTERNAL");
  std::memcpy(&create, &symbol, sizeof create);
  if (!create)
    return tensorrt_error(SPECC_E_ENGINE, "TensorRT %s has no runtime; install it again", e->given->version);
  if (std::atoi(e->given->version) != NV_TENSORRT_MAJOR || e->o().rtx != is_rtx)
    return tensorrt_error(SPECC_E_UNSUPPORTED,
        "engine %s needs %s %s, but this libspecc was compiled with the headers of %s; compile it with those "
        "of that version",
        e->given->model, e->o().rtx ? "TensorRT for RTX" : "TensorRT", e->given->version,
        specc_tensorrt_headers());
  e->runtime = static_cast<IRuntime *>(create(&e->log, NV_TENSORRT_VERSION));
  return e->runtime ? SPECC_OK : failed(e, SPECC_E_ENGINE, "could not start for");
}

int load(Engine *e) {
  int code = start_runtime(e);
  if (!code) code = gpu_require(&e->given->gpu, static_cast<int64_t>(e->given->plan_bytes), "the engine");
  if (code) return code;
  e->engine = e->runtime->deserializeCudaEngine(e->given->plan, e->given->plan_bytes);
  if (!e->engine) return failed(e, SPECC_E_FORMAT, "refused");
  code = check_signature(e);
  if (!code) code = check_profiles(e);
  for (int32_t j = 0; !code && j < e->o().n_widths; j++) {
    int64_t bytes = e->engine->getDeviceMemorySizeForProfileV2(j);
    if (bytes > e->workspace) e->workspace = bytes;
  }
  if (!code) gpu_kernels_load(&e->kernels, &e->given->gpu, nullptr);
  return code;
}

void release(void *self) {
  Engine *e = static_cast<Engine *>(self);
  guarded([&] {
    if (!SPECC_IS_OPENER(e->given->gpu.opener)) return 0; /* a forked child: the engine is the parent's */
    bool inside = !cuda_enter(&e->given->gpu);
    gpu_kernels_free(&e->kernels, &e->given->gpu);
    delete e->engine;
    delete e->runtime;
    if (inside) cuda_leave(&e->given->gpu);
    return 0;
  });
  tensorrt_engine_free(e->given);
  delete e;
}
} // namespace
#endif
