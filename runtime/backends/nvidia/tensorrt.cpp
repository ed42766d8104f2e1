/* tensorrt.cpp - runs a finished engine with plain TensorRT: no plugin, one execution context per width,
 * bound once.
 *
 * A call is one enqueue on the cache's stream; from a width's third call on it is the launch of a captured
 * CUDA graph. Ids go in and logits come out through pinned memory; where CPU and GPU share one memory
 * (Jetson) the engine reads and writes that memory itself and nothing is copied. Keys and values stay in the
 * GPU's memory, zeroed once. In place: present_x and past_x are one buffer, and no other buffer is ever read
 * or written (the aliasing rule); otherwise the engine reads slots before past_len, gives the call's rows,
 * and they are written behind it in the stream's order.
 *
 * Nothing thrown leaves this file: every function that C calls goes through guarded(). */
#include "backends/nvidia/gpu_cache.h"
#include "backends/nvidia/gpu_port.h"
#include "backends/nvidia/tensorrt_engine.hpp"
#include <cmath>

namespace {
/* ------------------------------------------------------------------ a cache */
enum { IDS, POSITION, ROWS, PAST, LOGITS, HIDDEN, PORTS };

/* The calls of one width. */
struct Call {
  IExecutionContext *context;
  cuda_graph_exec graph;
  int32_t calls;
};

struct Cache {
  Engine *e;
  specc_io io;
  int32_t past_len;
  int64_t *wanted; /* [widest] io.logit_rows: what the caller asks for, before it is padded */
  cuda_stream stream;
  gpu_port ports[PORTS]; /* ids in, logits and hidden states out */
  gpu_cache kv;
  cuda_address new_rows, workspace; /* [2 * layers][kv_heads, widest, head_dim] where the engine gives rows */
  size_t new_stride;
  gpu_judge *judge;
  Call calls[SPECC_MAX_WIDTHS];
};

int check(const Cache *c, int result, const char *action, const char *advice) {
  return cuda_check(c->e->driver(), result, action, advice);
}

void close_cache(void *opened) {
  Cache *c = static_cast<Cache *>(opened);
  const cuda_driver *d = c->e->driver();
  guarded([&] {
    if (!SPECC_IS_OPENER(c->e->given->gpu.opener)) return 0; /* a forked child: all of it is the parent's */
    bool inside = !cuda_enter(&c->e->given->gpu);
    for (Call &call : c->calls) {
      if (call.graph) d->graph_exec_destroy(call.graph);
      delete call.context;
    }
    gpu_judge_free(c->judge);
    for (gpu_port &p : c->ports) gpu_port_free(&p, &c->e->given->gpu);
    gpu_cache_free(&c->kv, &c->e->given->gpu);
    if (c->new_rows) d->free(c->new_rows);
    if (c->workspace) d->free(c->workspace);
    if (c->stream) d->stream_destroy(c->stream);
    if (inside) cuda_leave(&c->e->given->gpu);
    return 0;
  });
  std::free(c->wanted);
  std::free(c);
}

int open_ports(Cache *c) {
  size_t rows = static_cast<size_t>(c->e->widest()), vocab = static_cast<size_t>(c->e->o().vocab),
         hidden = static_cast<size_t>(c->e->o().hidden);
  const size_t bytes[PORTS] = {rows * 8, rows * 8, rows * 8, 8, rows * vocab * 4, rows * hidden * 4};
  int code = SPECC_OK;
  for (int i = 0; !code && i < PORTS; i++) code = gpu_port_open(&c->ports[i], &c->e->given->gpu, bytes[i]);
  c->io.input_ids = static_cast<int64_t *>(c->ports[IDS].host);
  c->io.position = static_cast<int64_t *>(c->ports[POSITION].host);
  c->io.logits = static_cast<float *>(c->ports[LOGITS].host);
  c->io.hidden = static_cast<float *>(c->ports[HIDDEN].host);
  c->io.logit_rows = c->wanted;
  c->io.past_len = &c->past_len;
  return code;
}

int open_memory(Cache *c) {
  const specc_tensorrt_options &o = c->e->o();
  const cuda_driver *d = c->e->driver();
  c->kv.type = o.cache_type, c->kv.buffers = 2 * o.layers, c->kv.heads = o.kv_heads,
  c->kv.capacity = o.capacity, c->kv.dim = o.head_dim;
  int code = gpu_cache_create(&c->kv, &c->e->given->gpu, c->stream);
  if (!code) code = gpu_require(&c->e->given->gpu, c->e->workspace, "the engine's workspace");
  if (!code && c->e->workspace)
    code = check(c, d->alloc(&c->workspace, static_cast<size_t>(c->e->workspace)),
        "could not allocate the workspace", CLOSE_OTHERS);
  if (code || !o.rows_out) return code;
  size_t bytes = static_cast<size_t>(o.kv_heads) * static_cast<size_t>(c->e->widest()) *
                 static_cast<size_t>(o.head_dim) * cache_item(o.cache_type);
  c->new_stride = (bytes + 255) / 256 * 256;
  return check(c, d->alloc(&c->new_rows, c->new_stride * static_cast<size_t>(2 * o.layers)),
      "could not allocate a call's buffers", CLOSE_OTHERS);
}

/* ------------------------------------------------------------------ binding, once */
void *as_pointer(cuda_address a) {
  return reinterpret_cast<void *>(static_cast<uintptr_t>(a));
}

bool bind_caches(Cache *c, IExecutionContext *context) {
  const specc_tensorrt_options &o = c->e->o();
  char name[32];
  bool good = true;
  for (int32_t i = 0; good && i < 2 * o.layers; i++) {
    void *past = as_pointer(gpu_cache_at(&c->kv, i));
    std::snprintf(name, sizeof name, "past_%c.%d", i % 2 ? 'v' : 'k', i / 2);
    good = context->setTensorAddress(name, past);
    std::snprintf(name, sizeof name, "%s_%c.%d", o.rows_out ? "rows" : "present", i % 2 ? 'v' : 'k', i / 2);
    good = good &&
           context->setTensorAddress(name,
               o.rows_out ? as_pointer(c->new_rows + static_cast<cuda_address>(i) * c->new_stride) : past);
  }
  return good;
}

bool bind(Cache *c, IExecutionContext *context, int32_t width) {
  static const char *const names[PORTS] = {
      "input_ids", "position", "logit_rows", "past_len", "logits", "hidden"};
  Dims pair{}, single{};
  pair.nbDims = 2, pair.d[0] = 1, pair.d[1] = width, single.nbDims = 1, single.d[0] = width;
  bool good = context->setInputShape("input_ids", pair) && context->setInputShape("position", pair) &&
              context->setInputShape("logit_rows", single);
  for (int i = 0; good && i < PORTS; i++)
    if (c->ports[i].bytes) good = context->setTensorAddress(names[i], as_pointer(c->ports[i].device));
  return good && bind_caches(c, context) && context->allInputDimensionsSpecified();
}

IExecutionContext *create_context(Engine *e) {
#ifdef TRT_MAJOR_RTX
  /* Kernels made for the shapes before the first call, never swapped in behind a running one: bits must not
   * change. */
  nvinfer1::IRuntimeConfig *config = e->engine->createRuntimeConfig();
  if (!config) return nullptr;
  config->setExecutionContextAllocationStrategy(nvinfer1::ExecutionContextAllocationStrategy::kUSER_MANAGED);
  config->setDynamicShapesKernelSpecializationStrategy(
      nvinfer1::DynamicShapesKernelSpecializationStrategy::kEAGER);
  IExecutionContext *context = e->engine->createExecutionContext(config);
  delete config;
  return context;
#else
  return e->engine->createExecutionContext(nvinfer1::ExecutionContextAllocationStrategy::kUSER_MANAGED);
#endif
}

int open_call(Cache *c, int32_t j) {
  Engine *e = c->e;
  Call *call = &c->calls[j];
  call->context = create_context(e);
  if (!call->context) return failed(e, SPECC_E_ENGINE, "could not make a context of");
  auto stream = reinterpret_cast<cudaStream_t>(c->stream);
  if (!call->context->setOptimizationProfileAsync(j, stream))
    return failed(e, SPECC_E_ENGINE, "could not choose a profile of");
  int code = check(c, e->driver()->stream_wait(c->stream), "failed while a profile was chosen", AGAIN);
  call->context->setDeviceMemoryV2(as_pointer(c->workspace), e->workspace);
  return code ? code
         : bind(c, call->context, e->o().widths[j])
             ? SPECC_OK
             : failed(e, SPECC_E_ENGINE, "could not bind the buffers of");
}

int open_inside(Cache *c) {
  int code = check(c, c->e->driver()->stream_create(&c->stream, CUDA_STREAM_NON_BLOCKING),
      "could not make a stream", CLOSE_OTHERS);
  if (!code) code = open_ports(c);
  if (!code) code = open_memory(c);
  for (int32_t j = 0; !code && j < c->e->o().n_widths; j++) code = open_call(c, j);
  if (code || !c->e->kernels.judge) return code;
  return gpu_judge_create(
      &c->judge, &c->e->given->gpu, c->stream, c->e->o().vocab, c->e->o().capacity, MOST_ROWS);
}

int open_cache(void *self, void **out, specc_io *io) {
  return guarded([&] {
    Engine *e = static_cast<Engine *>(self);
    Cache *c = static_cast<Cache *>(std::calloc(1, sizeof *c));
    if (!c) return tensorrt_error(SPECC_E_MEMORY, "no memory left for a cache; " CLOSE_OTHERS);
    c->e = e;
    c->wanted = static_cast<int64_t *>(std::calloc(static_cast<size_t>(e->widest()), sizeof *c->wanted));
    int code = c->wanted ? cuda_enter(&e->given->gpu)
                         : tensorrt_error(SPECC_E_MEMORY, "no memory left for a cache; " CLOSE_OTHERS);
    if (!code) code = open_inside(c), cuda_leave(&e->given->gpu);
    if (code) return close_cache(c), code;
    *out = c, *io = c->io;
    return static_cast<int>(SPECC_OK);
  });
}

/* ------------------------------------------------------------------ a call */
int bad_call(int32_t rows, const char *what) {
  return tensorrt_error(SPECC_E_ARGUMENT, "a call of %d rows %s; this is a fault of its caller", rows, what);
}

bool all_within(const int64_t *values, int32_t n, int64_t end) {
  for (int32_t i = 0; i < n; i++)
    if (values[i] < 0 || values[i] >= end) return false;
  return true;
}

int check_call(const Cache *c, int32_t rows, int32_t n_logits) {
  const specc_tensorrt_options &o = c->e->o();
  if (n_logits < 0 || n_logits > rows || (n_logits == 0 && !c->judge))
    return bad_call(rows, "asks for another number of logits");
  if (c->past_len < 0 || c->past_len > o.capacity - rows) return bad_call(rows, "does not fit the cache");
  if (!all_within(c->io.input_ids, rows, o.vocab))
    return bad_call(rows, "holds a token id outside the vocabulary");
  if (!all_within(c->io.position, rows, o.capacity))
    return bad_call(rows, "holds a position outside the cache");
  return all_within(c->wanted, n_logits, rows) ? SPECC_OK
                                               : bad_call(rows, "asks for the logits of another row");
}

/* Always as many logit rows as rows: the last one wanted is repeated; all of them, in order, where they stay
 * on the device. */
void fill_inputs(Cache *c, int32_t rows, int32_t n_logits) {
  int64_t *to = static_cast<int64_t *>(c->ports[ROWS].host);
  for (int32_t i = 0; i < rows; i++) to[i] = n_logits == 0 ? i : c->wanted[i < n_logits ? i : n_logits - 1];
  *static_cast<int64_t *>(c->ports[PAST].host) = c->past_len;
}

/* Inputs over, then the engine: what a graph holds. Addresses are fixed, whole buffers go, so one graph
 * serves every call. */
int enqueue(Cache *c, Call *call) {
  int code = SPECC_OK;
  for (int i = IDS; !code && i <= PAST; i++) code = gpu_port_send(&c->ports[i], &c->e->given->gpu, c->stream);
  if (code) return code;
  return call->context->enqueueV3(reinterpret_cast<cudaStream_t>(c->stream))
             ? SPECC_OK
             : failed(c->e, SPECC_E_ENGINE, "failed in a call of");
}

/* A graph that cannot be made is no error: the width is then enqueued as before. */
void capture(Cache *c, Call *call) {
  const cuda_driver *d = c->e->driver();
  cuda_graph graph = nullptr;
  if (d->capture_begin(c->stream, CUDA_CAPTURE_THREAD)) return;
  int code = enqueue(c, call);
  if (d->capture_end(c->stream, &graph) || !graph) return;
  if (!code && d->graph_instantiate(&call->graph, graph, 0)) call->graph = nullptr;
  d->graph_destroy(graph);
}

/* The first call of a context may allocate and tune, so it is never captured; the second one is enqueued and
 * then recorded. */
int start(Cache *c, Call *call) {
  if (call->calls == 1) capture(c, call);
  if (call->calls < 2) call->calls++;
  if (call->graph)
    return check(c, c->e->driver()->graph_launch(call->graph, c->stream), "could not launch a call", AGAIN);
  return enqueue(c, call);
}

int put_rows(Cache *c, int32_t rows) {
  int code = SPECC_OK;
  for (int32_t i = 0; c->e->o().rows_out && !code && i < c->kv.buffers; i++)
    code = gpu_cache_put(&c->kv, &c->e->given->gpu, c->stream, i, c->past_len, rows,
        c->new_rows + static_cast<cuda_address>(i) * c->new_stride);
  return code;
}

int fetch(Cache *c, int port, size_t bytes) {
  return gpu_port_fetch(&c->ports[port], &c->e->given->gpu, c->stream, bytes);
}

int run_inside(Cache *c, Call *call, int32_t rows, int32_t n_logits) {
  const specc_tensorrt_options &o = c->e->o();
  fill_inputs(c, rows, n_logits);
  int code = start(c, call);
  if (!code) code = put_rows(c, rows);
  if (!code) code = fetch(c, LOGITS, static_cast<size_t>(n_logits) * static_cast<size_t>(o.vocab) * 4);
  if (!code) code = fetch(c, HIDDEN, static_cast<size_t>(rows) * static_cast<size_t>(o.hidden) * 4);
  return code ? code : check(c, c->e->driver()->stream_wait(c->stream), "failed in a call", AGAIN);
}

int run(void *opened, int32_t rows, int32_t n_logits) {
  return guarded([&] {
    Cache *c = static_cast<Cache *>(opened);
    const specc_tensorrt_options &o = c->e->o();
    int32_t j = 0;
    while (j < o.n_widths && o.widths[j] != rows) j++;
    int code = j == o.n_widths ? bad_call(rows, "is of no width that the engine lists")
                               : check_call(c, rows, n_logits);
    if (!code) code = cuda_enter(&c->e->given->gpu);
    if (code) return code;
    code = run_inside(c, &c->calls[j], rows, n_logits);
    cuda_leave(&c->e->given->gpu);
    return code;
  });
}

/* Behind a mask even a stale entry must be a number that a cache could hold: 0 * NaN is NaN. So poison is
 * loud but finite. */
float finite(float value) {
  return std::isnan(value) ? 77.0f : value > 256.0f ? 256.0f : value < -256.0f ? -256.0f : value;
}

int poison(void *opened, int32_t from, float value) {
  return guarded([&] {
    Cache *c = static_cast<Cache *>(opened);
    if (from < 0 || from > c->kv.capacity)
      return tensorrt_error(SPECC_E_ARGUMENT, "slot %d is outside 0..%d; poison from a slot of the cache",
          from, c->kv.capacity);
    int code = cuda_enter(&c->e->given->gpu);
    if (code) return code;
    code = gpu_cache_fill(&c->kv, &c->e->given->gpu, c->stream, from, finite(value));
    cuda_leave(&c->e->given->gpu);
    return code;
  });
}

int judge_rows(void *opened, const specc_round *round, int32_t *accepted, int32_t *token) {
  return guarded([&] {
    Cache *c = static_cast<Cache *>(opened);
    int code = cuda_enter(&c->e->given->gpu);
    if (code) return code;
    code = gpu_judge_run(c->judge, &c->e->kernels, round, c->ports[LOGITS].device, accepted, token);
    cuda_leave(&c->e->given->gpu);
    return code;
  });
}

void fill_backend(Engine *e, specc_backend *b) {
  std::memset(b, 0, sizeof *b);
  b->name = is_rtx ? "tensorrt-rtx" : "tensorrt", b->version = e->given->version;
  b->vocab = e->o().vocab, b->capacity = e->o().capacity, b->n_widths = e->o().n_widths,
  b->hidden = e->o().hidden;
  std::memcpy(b->widths, e->o().widths, sizeof b->widths);
  b->self = e, b->open = open_cache, b->run = run, b->poison = poison, b->close = close_cache,
  b->release = release;
  b->device = e->given->gpu.name, b->fingerprint = e->given->gpu.fingerprint;
  b->judge = e->kernels.judge ? judge_rows : nullptr;
}
} // namespace

extern "C" SPECC_API const char *specc_tensorrt_headers(void) {
  static char text[64];
  std::snprintf(text, sizeof text, "%s %d.%d", is_rtx ? "TensorRT for RTX" : "TensorRT",
      static_cast<int>(NV_TENSORRT_MAJOR), static_cast<int>(NV_TENSORRT_MINOR));
  return text;
}

extern "C" int tensorrt_open(tensorrt_engine *given, specc_backend *backend) {
  Engine *e = new (std::nothrow) Engine(given);
  if (!e)
    return tensorrt_engine_free(given),
           tensorrt_error(SPECC_E_MEMORY, "no memory left for an engine; " CLOSE_OTHERS);
  int code = cuda_enter(&given->gpu);
  if (!code) code = guarded([&] { return load(e); }), cuda_leave(&given->gpu);
  if (code) return release(e), code;
  tensorrt_forget_plan(given);
  fill_backend(e, backend);
  return SPECC_OK;
}
