/* stub_tensorrt.cpp - a libnvinfer for tests, over stub_cuda.c: engines whose plan says what they are, whose
 * logits are a hash of every cache entry that a row may see. Compiled only against NVIDIA's headers; the
 * tables of virtual functions are made by hand from pointers to members, so that one text serves every
 * version. STUB_TENSORRT_FAIL=enqueue|capture|context fails there. */
#include "stub_numbers.h"
#include "stub_plan.h"
#include <NvInferRuntime.h>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <string>

using namespace nvinfer1;

namespace {
using Submit = int (*)(void (*)(const void *), const void *, std::size_t);
using Host = void *(*)(uint64_t);
Submit submit;
Host host;

bool fails(const char *where) {
  const char *wish = std::getenv("STUB_TENSORRT_FAIL");
  return wish && !std::strcmp(wish, where);
}

/* ------------------------------------------------------------------ tables */
constexpr int MOST = 256;
struct Table {
  void *entries[MOST];
};
[[noreturn]] void missing() {
  std::fprintf(stderr, "a TensorRT function was called that the stub lacks\n");
  std::abort();
}
Table empty_table() {
  Table t;
  for (void *&e : t.entries) e = reinterpret_cast<void *>(missing);
  return t;
}

template <class M, class F> void put(Table &t, M member, F function) {
  std::uintptr_t words[2];
  std::memcpy(words, &member, sizeof words);
#if defined(__aarch64__)
  std::size_t index = words[0] / sizeof(void *);
#else
  std::size_t index = (words[0] - 1) / sizeof(void *);
#endif
  t.entries[index] = reinterpret_cast<void *>(function);
}

struct Impl {
  void **table;
  stub_plan plan;
};

/* ------------------------------------------------------------------ the numbers */
struct Names {
  char text[32];
};
struct Context : IExecutionContext {
  Impl impl;
  int profile = -1, width = 0, bound = 0;
  void *workspace = nullptr;
  int64_t *ids = nullptr, *position = nullptr, *rows = nullptr, *past = nullptr;
  float *logits = nullptr, *hidden = nullptr;
  unsigned char *in[STUB_LAYERS][2] = {}, *out[STUB_LAYERS][2] = {};
};

/* What row r sees of one tensor: in place the cache itself, else the cache before past and the call's own
 * rows. */
float seen(const Context *c, int layer, int which, int32_t head, int32_t slot) {
  const stub_plan &p = c->impl.plan;
  int32_t past = static_cast<int32_t>(*c->past);
  if (!p.rows_out || slot < past) return get(p, c->in[layer][which], p.capacity, head, slot);
  return slot < past + c->width ? get(p, c->out[layer][which], c->width, head, slot - past) : 0;
}

void write(Context *c) {
  const stub_plan &p = c->impl.plan;
  for (int layer = 0; layer < p.layers; layer++)
    for (int which = 0; which < 2; which++)
      for (int32_t head = 0; head < p.kv_heads; head++)
        for (int32_t r = 0; r < c->width; r++) {
          float x = static_cast<float>(c->ids[r] + 1 + layer + 2 * which + 3 * head + c->position[r] % 7);
          if (p.rows_out)
            set(p, c->out[layer][which], c->width, head, r, x);
          else
            set(p, c->out[layer][which], p.capacity, head, static_cast<int32_t>(*c->past) + r, x);
        }
}

/* Stale entries are masked by a product with 0, as a careless kernel does it: a NaN among them shows. */
float row_hash(const Context *c, int32_t r) {
  const stub_plan &p = c->impl.plan;
  int32_t last = static_cast<int32_t>(*c->past) + r;
  uint64_t x = 7;
  float masked = 0;
  for (int32_t slot = 0; slot < p.capacity; slot++)
    for (int layer = 0; layer < p.layers; layer += p.layers - 1 ? p.layers - 1 : 1)
      for (int which = 0; which < 2; which++) {
        float value = seen(c, layer, which, p.kv_heads - 1, slot);
        if (slot <= last)
          x = x * 6364136223846793005ull + static_cast<uint64_t>(static_cast<int64_t>(value * 4));
        else
          masked += 0.0f * value;
      }
  return static_cast<float>((x >> 33) % 1000003) + masked;
}

void compute(const void *arguments) {
  Context *c;
  std::memcpy(&c, arguments, sizeof c);
  const stub_plan &p = c->impl.plan;
  std::memset(c->workspace, 0x5a, 4096);
  write(c);
  for (int32_t i = 0; i < c->width; i++) {
    float hash = row_hash(c, static_cast<int32_t>(c->rows[i]));
    for (int32_t v = 0; v < p.vocab; v++) {
      float spread = std::fmod(hash * static_cast<float>(v * 37 + 11), 61.0f) / 10.0f;
      if (v == (c->ids[c->rows[i]] + 1) % 8) spread += 4; /* text that repeats, so that drafters propose */
      c->logits[static_cast<std::size_t>(i) * p.vocab + v] =
          p.fault == STUB_WIDTH_FAULT && c->width == 1 ? spread * 1.01f : spread;
    }
  }
  for (int32_t r = 0; p.hidden && r < c->width; r++)
    for (int32_t i = 0; i < p.hidden; i++)
      c->hidden[r * p.hidden + i] = static_cast<float>(c->ids[r] * 100 + i);
}

/* ------------------------------------------------------------------ contexts */
bool set_profile(Impl *impl, int32_t profile, cudaStream_t) {
  reinterpret_cast<Context *>(impl->plan.owner)->profile = profile;
  return profile < impl->plan.n_widths;
}
void set_workspace(Impl *impl, void *memory, int64_t) {
  reinterpret_cast<Context *>(impl->plan.owner)->workspace = host(reinterpret_cast<uint64_t>(memory));
}
bool set_shape(Impl *impl, const char *name, const Dims &dims) {
  auto *c = reinterpret_cast<Context *>(impl->plan.owner);
  if (!std::strcmp(name, "input_ids")) c->width = static_cast<int>(dims.d[1]);
  return c->profile >= 0 && dims.d[dims.nbDims - 1] == impl->plan.widths[c->profile];
}
bool all_set(Impl *impl) {
  return reinterpret_cast<Context *>(impl->plan.owner)->width > 0;
}

bool set_address(Impl *impl, const char *name, void *address) {
  auto *c = reinterpret_cast<Context *>(impl->plan.owner);
  void *memory = host(reinterpret_cast<uint64_t>(address));
  char kind[16] = "", letter = 0;
  int layer = 0;
  if (!memory) return false; /* the CPU's memory: an engine cannot use it */
  c->bound++;
  if (std::sscanf(name, "%15[a-z]_%c.%d", kind, &letter, &layer) == 3) {
    (!std::strcmp(kind, "past") ? c->in : c->out)[layer][letter == 'v'] =
        static_cast<unsigned char *>(memory);
    return true;
  }
  struct {
    const char *name;
    void **place;
  } plain[] = {{"input_ids", reinterpret_cast<void **>(&c->ids)},
      {"position", reinterpret_cast<void **>(&c->position)},
      {"logit_rows", reinterpret_cast<void **>(&c->rows)}, {"past_len", reinterpret_cast<void **>(&c->past)},
      {"logits", reinterpret_cast<void **>(&c->logits)}, {"hidden", reinterpret_cast<void **>(&c->hidden)}};
  for (auto &p : plain)
    if (!std::strcmp(name, p.name)) return *p.place = memory, true;
  return false;
}

/* In place, another buffer as present would silently be read by one engine and not by another: refused, as
 * TensorRT does. */
bool aliased(const Context *c) {
  const stub_plan &p = c->impl.plan;
  for (int layer = 0; layer < p.layers; layer++)
    for (int which = 0; which < 2; which++)
      if ((c->in[layer][which] == c->out[layer][which]) == (p.rows_out != 0)) return false;
  return true;
}

bool enqueue(Impl *impl, cudaStream_t) {
  auto *c = reinterpret_cast<Context *>(impl->plan.owner);
  if (fails("enqueue") || !aliased(c) || !c->workspace) return false;
  return !submit(compute, &c, sizeof c);
}

Table context_table() {
  Table t = empty_table();
  put(t, &apiv::VExecutionContext::setOptimizationProfileAsync, set_profile);
  put(t, &apiv::VExecutionContext::setDeviceMemoryV2, set_workspace);
  put(t, &apiv::VExecutionContext::setInputShape, set_shape);
  put(t, &apiv::VExecutionContext::setTensorAddress, set_address);
  put(t, &apiv::VExecutionContext::allInputDimensionsSpecified, all_set);
  put(t, &apiv::VExecutionContext::enqueueV3, enqueue);
  return t;
}

/* ------------------------------------------------------------------ engines */
struct Tensor {
  bool known, input;
  DataType type;
  Dims dims;
};

Dims dims_of(std::initializer_list<int64_t> sizes) {
  Dims d{};
  for (int64_t size : sizes) d.d[d.nbDims++] = static_cast<decltype(d.d[0] + 0)>(size);
  return d;
}

Tensor describe(const stub_plan &p, const std::string &name) {
  DataType kv = p.cache_type == 0   ? DataType::kFLOAT
                : p.cache_type == 1 ? DataType::kHALF
                : p.cache_type == 2 ? DataType::kBF16
                                    : DataType::kFP8;
  if (name == "input_ids" || name == "position") return {true, true, DataType::kINT64, dims_of({1, -1})};
  if (name == "past_len") return {true, true, DataType::kINT64, dims_of({1})};
  if (name == "logit_rows")
    return {true, true, p.fault == STUB_TYPE_FAULT ? DataType::kINT32 : DataType::kINT64, dims_of({-1})};
  if (name == "logits") return {true, false, DataType::kFLOAT, dims_of({-1, p.vocab})};
  if (name == "hidden" && p.hidden) return {true, false, DataType::kFLOAT, dims_of({-1, p.hidden})};
  if (name.rfind("past_", 0) == 0) return {true, true, kv, dims_of({1, p.kv_heads, p.capacity, p.head_dim})};
  if (name.rfind("present_", 0) == 0 && !p.rows_out)
    return {true, false, kv, dims_of({1, p.kv_heads, p.capacity, p.head_dim})};
  if (name.rfind("rows_", 0) == 0 && p.rows_out)
    return {true, false, kv, dims_of({1, p.kv_heads, -1, p.head_dim})};
  return {false, false, DataType::kFLOAT, Dims{}};
}

TensorIOMode io_mode(Impl *i, const char *name) {
  Tensor t = describe(i->plan, name);
  return !t.known ? TensorIOMode::kNONE : t.input ? TensorIOMode::kINPUT : TensorIOMode::kOUTPUT;
}
DataType data_type(Impl *i, const char *name) {
  return describe(i->plan, name).type;
}
TensorLocation location(Impl *, const char *) {
  return TensorLocation::kDEVICE;
}
Dims shape(Impl *i, const char *name) {
  return describe(i->plan, name).dims;
}
int32_t count(Impl *i) {
  return 5 + (i->plan.hidden > 0) + 4 * i->plan.layers + (i->plan.fault == STUB_EXTRA_FAULT);
}
int32_t profiles(Impl *i) {
  return i->plan.n_widths;
}
Dims profile_shape(Impl *i, const char *, int32_t j, OptProfileSelector) {
  return dims_of({1, i->plan.widths[i->plan.fault == STUB_SWAP_FAULT && j < 2 ? 1 - j : j]});
}
int64_t workspace_size(Impl *, int32_t) {
  return 4096;
}

struct FakeEngine : ICudaEngine {
  Impl impl;
};
struct FakeRuntime : IRuntime {
  Impl impl;
};

template <class Base, class V> struct Open : Base {
  void set(Impl *impl) {
    this->mImpl = reinterpret_cast<V *>(impl);
  }
};

IExecutionContext *make_context(Impl *impl, ExecutionContextAllocationStrategy) {
  static Table table = context_table();
  if (fails("context")) return nullptr;
  auto *c = new Open<Context, apiv::VExecutionContext>();
  c->impl = Impl{table.entries, impl->plan};
  c->impl.plan.owner = reinterpret_cast<uint64_t>(static_cast<Context *>(c));
  c->set(&c->impl);
  return c;
}

#ifdef TRT_MAJOR_RTX
/* TensorRT for RTX makes contexts from settings: without these two a context would bring memory, or swap
 * kernels, of its own. */
struct FakeConfig : IRuntimeConfig {
  Impl impl;
};
bool by_caller, eager;
void set_memory(Impl *, ExecutionContextAllocationStrategy how) {
  by_caller = how == ExecutionContextAllocationStrategy::kUSER_MANAGED;
}
void set_kernels(Impl *, DynamicShapesKernelSpecializationStrategy how) {
  eager = how == DynamicShapesKernelSpecializationStrategy::kEAGER;
}

Table config_table() {
  Table t = empty_table();
  put(t, &apiv::VRuntimeConfig::setExecutionContextAllocationStrategy, set_memory);
  put(t, &apiv::VRuntimeConfig::setDynamicShapesKernelSpecializationStrategy, set_kernels);
  return t;
}

IRuntimeConfig *make_config(Impl *) {
  static Table table = config_table();
  by_caller = eager = false;
  auto *config = new Open<FakeConfig, apiv::VRuntimeConfig>();
  config->impl = Impl{table.entries, {}};
  config->set(&config->impl);
  return config;
}

IExecutionContext *make_configured(Impl *impl, IRuntimeConfig *config) {
  return config && by_caller && eager ? make_context(impl, ExecutionContextAllocationStrategy::kUSER_MANAGED)
                                      : nullptr;
}
#endif

Table engine_table() {
  Table t = empty_table();
  put(t, &apiv::VCudaEngine::getTensorIOMode, io_mode);
  put(t, &apiv::VCudaEngine::getTensorDataType, data_type);
  put(t, &apiv::VCudaEngine::getTensorLocation, location);
  put(t,
      static_cast<Dims (apiv::VCudaEngine::*)(const char *) const noexcept>(
          &apiv::VCudaEngine::getTensorShape),
      shape);
  put(t, &apiv::VCudaEngine::getNbIOTensors, count);
  put(t, &apiv::VCudaEngine::getNbOptimizationProfiles, profiles);
  put(t,
      static_cast<Dims (apiv::VCudaEngine::*)(const char *, int32_t, OptProfileSelector) const noexcept>(
          &apiv::VCudaEngine::getProfileShape),
      profile_shape);
  put(t, &apiv::VCudaEngine::getDeviceMemorySizeForProfileV2, workspace_size);
  put(t,
      static_cast<IExecutionContext *(apiv::VCudaEngine::*)(ExecutionContextAllocationStrategy) noexcept>(
          &apiv::VCudaEngine::createExecutionContext),
      make_context);
#ifdef TRT_MAJOR_RTX
  put(t, &apiv::VCudaEngine::createRuntimeConfig, make_config);
  put(t, &apiv::VCudaEngine::createExecutionContextWithRuntimeConfig, make_configured);
#endif
  return t;
}

ILogger *logger;

ICudaEngine *deserialize(Impl *, const void *blob, std::size_t size) {
  static Table table = engine_table();
  stub_plan plan;
  if (size < sizeof plan) return nullptr;
  std::memcpy(&plan, blob, sizeof plan);
  if (plan.magic != STUB_MAGIC)
    return logger->log(ILogger::Severity::kERROR, "Magic tag does not match"), nullptr;
  auto *e = new Open<FakeEngine, apiv::VCudaEngine>();
  e->impl = Impl{table.entries, plan};
  e->set(&e->impl);
  return e;
}

Table runtime_table() {
  Table t = empty_table();
  put(t,
      static_cast<ICudaEngine *(apiv::VRuntime::*)(const void *, std::size_t) noexcept>(
          &apiv::VRuntime::deserializeCudaEngine),
      deserialize);
  return t;
}
} // namespace

#define SAYS extern "C" __attribute__((visibility("default")))
SAYS int32_t getInferLibMajorVersion(void) {
  return NV_TENSORRT_MAJOR;
}
SAYS int32_t getInferLibMinorVersion(void) {
  return NV_TENSORRT_MINOR;
}
SAYS int32_t getInferLibPatchVersion(void) {
  return NV_TENSORRT_PATCH;
}
SAYS int32_t getInferLibBuildVersion(void) {
  return 1;
}
SAYS int32_t getInferLibVersion(void) {
  return NV_TENSORRT_VERSION;
}

extern "C" __attribute__((visibility("default"))) void *createInferRuntime_INTERNAL(
    void *log, int32_t version) noexcept {
  static Table table = runtime_table();
  void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
  submit = cuda ? reinterpret_cast<Submit>(dlsym(cuda, "stub_cuda_submit")) : nullptr;
  host = cuda ? reinterpret_cast<Host>(dlsym(cuda, "stub_cuda_host")) : nullptr;
  if (cuda) dlclose(cuda);
  if (!submit || !host || version != NV_TENSORRT_VERSION) return nullptr;
  logger = static_cast<ILogger *>(log);
  auto *r = new Open<FakeRuntime, apiv::VRuntime>();
  r->impl = Impl{table.entries, {}};
  r->set(&r->impl);
  return static_cast<IRuntime *>(r);
}
