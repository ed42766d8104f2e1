/* ort.c - the ONNX Runtime backend: a library loaded at run time, one session per engine, buffers bound once
 * per cache. */
#include "backends/ort/ort_engine.h"
#include "core/io/error.h"
#include "core/io/process.h"
#include "core/numbers/arithmetic.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define ALIGN 64 /* bytes: a cache line, and the widest vector register */
#define MAX_HIDDEN (1 << 20)
#define MAX_BYTES ((int64_t)1 << 40) /* of one cache: more is a mistake in the numbers */

/* ------------------------------------------------------------------ the session */
/* Row counts change from call to call, so a memory pattern of one call would not fit the next. */
static int set_options(const library *lib, OrtSessionOptions *options, int threads, bool shares_cores) {
  const ort_api *api = &lib->api;
  const char *action = "refused", *thing = "a session option", *advice = "install another version";
  int code = ort_check(lib, api->SetIntraOpNumThreads(options, threads), action, thing, advice);
  if (!code) code = ort_check(lib, api->SetInterOpNumThreads(options, 1), action, thing, advice);
  if (!code)
    code = ort_check(lib, api->SetSessionExecutionMode(options, ORT_SEQUENTIAL), action, thing, advice);
  if (!code) code = ort_check(lib, api->DisableMemPattern(options), action, thing, advice);
  /* Each session has its own pool, whose threads wait for the next call by spinning. */
  if (!code && shares_cores)
    code = ort_check(
        lib, api->AddSessionConfigEntry(options, "session.force_spinning_stop", "1"), action, thing, advice);
  if (!code)
    code =
        ort_check(lib, api->SetSessionLogSeverityLevel(options, ORT_SEVERITY_FATAL), action, thing, advice);
  return code;
}

static int create_session(engine *e, const specc_ort_options *o, int threads) {
  const char *model = o->model;
  OrtSessionOptions *options = NULL;
  struct stat found;
  if (stat(model, &found) || !S_ISREG(found.st_mode))
    return specc_error(
        SPECC_E_IO, "there is no graph file %s; check the path or build the bundle again", model);
  int code = ort_check(
      e->lib, e->lib->api.CreateSessionOptions(&options), "could not prepare", model, "close other programs");
  if (!code) code = set_options(e->lib, options, threads, o->shares_cores != 0);
  if (!code)
    code = ort_check(e->lib, RegisterCustomOps(options, e->lib->base), "could not take specc's operators for",
        model, "install a newer one");
  if (!code && o->provider) code = ort_device_append(e->lib, options, o);
  if (!code)
    code = ort_check(e->lib, e->lib->api.CreateSession(e->lib->env, model, options, &e->session),
        "could not load", model, "build the bundle again, or install the engine version that it names");
  if (options) e->lib->api.ReleaseSessionOptions(options);
  return code;
}

static int check_process(const engine *e) {
  if (SPECC_IS_OPENER(e->opener)) return SPECC_OK;
  return specc_error(SPECC_E_UNSUPPORTED, SPECC_FORKED, e->opener, (int)getpid());
}

/* In a forked child the session would wait for threads that are not there, so the engine's part stays. */
static void ort_release(void *self) {
  engine *e = self;
  if (SPECC_IS_OPENER(e->opener)) {
    if (e->session) e->lib->api.ReleaseSession(e->session);
    if (e->memory) e->lib->api.ReleaseMemoryInfo(e->memory);
    ort_device_close(e->device, e->lib);
    if (e->lib) ort_drop(e->lib);
  }
  free(e->names);
  free(e);
}

/* ------------------------------------------------------------------ a cache: buffers and bindings, laid out
 * once */
typedef struct binding {
  int32_t rows, n_logits;
  OrtIoBinding *io;
} binding;

typedef struct cache {
  engine *engine;
  specc_io io;
  int32_t past_len;
  int64_t masked_past; /* the same where the graph wants int64 */
  void *memory;        /* one block that holds the io buffers and, on the CPU, the cache; pinned for a GPU */
  unsigned char *kv;   /* [2 * layers] tensors [kv_heads, capacity, head_dim], kv_stride apart */
  size_t kv_stride;    /* bytes */
  gpu_cache there;     /* the same in the GPU's memory */
  OrtValue **values;   /* [n_values] every tensor made: the 2 * layers of the cache first, then past_len */
  int32_t n_values, n_bindings;
  binding bindings[SPECC_MAX_WIDTHS + 1];
} cache;

static size_t pad_size(size_t bytes) {
  return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static size_t count_kv_bytes(const engine *e) {
  return (size_t)e->kv_heads * (size_t)e->capacity * (size_t)e->head_dim * cache_item(e->cache_type);
}

static void release_bindings(cache *c) {
  const ort_api *api = &c->engine->lib->api;
  for (int32_t i = 0; i < c->n_bindings; i++)
    if (c->bindings[i].io) api->ReleaseIoBinding(c->bindings[i].io);
  for (int32_t i = 0; i < c->n_values; i++) api->ReleaseValue(c->values[i]);
}

static void ort_close(void *opened) {
  cache *c = opened;
  bool is_opener = SPECC_IS_OPENER(c->engine->opener);
  if (is_opener) release_bindings(c);
  free(c->values);
  if (!c->engine->device)
    free(c->memory);
  else if (is_opener)
    ort_device_uncache(c->engine->device, &c->there), ort_device_unpin(c->engine->device, c->memory);
  free(c);
}

static int refuse_memory(const engine *e) {
  return specc_error(
      SPECC_E_MEMORY, "no memory left for a cache of %d slots; lower the context", e->capacity);
}

/* Zeroed. calloc: the system gives pages as they are first touched. */
static int allocate(cache *c, size_t bytes) {
  const engine *e = c->engine;
  if (e->device) return ort_device_pinned(e->device, bytes, &c->memory);
  c->memory = calloc(1, bytes);
  return c->memory ? SPECC_OK : refuse_memory(e);
}

static int allocate_on_device(cache *c) {
  const engine *e = c->engine;
  c->there = (gpu_cache){.type = e->cache_type,
      .buffers = 2 * e->layers,
      .heads = e->kv_heads,
      .capacity = e->capacity,
      .dim = e->head_dim};
  int code = e->layers ? ort_device_cache(e->device, &c->there) : SPECC_OK;
  c->kv = (void *)(uintptr_t)c->there.base, c->kv_stride = c->there.stride;
  return code;
}

static int allocate_buffers(cache *c) {
  const engine *e = c->engine;
  size_t kv = pad_size(count_kv_bytes(e)), rows = pad_size((size_t)e->widest * sizeof(int64_t)),
         caches = e->device ? 0 : 2 * (size_t)e->layers * kv;
  size_t logits = pad_size((size_t)e->widest * (size_t)e->vocab * sizeof(float));
  size_t hidden = pad_size((size_t)e->widest * (size_t)e->hidden * sizeof(float)),
         in = pad_size((size_t)e->widest * (size_t)e->hidden_in * sizeof(float));
  c->values = calloc(2 * (size_t)e->layers + 1 + 6 * (SPECC_MAX_WIDTHS + 1), sizeof(OrtValue *));
  if (!c->values) return refuse_memory(e);
  int code = allocate(c, caches + 3 * rows + logits + hidden + in + ALIGN);
  if (code) return code;
  unsigned char *p = c->memory;
  p += (ALIGN - (uintptr_t)p % ALIGN) % ALIGN;
  c->kv = p, c->kv_stride = kv, p += caches;
  c->io.input_ids = (void *)p, p += rows;
  c->io.position = (void *)p, p += rows;
  c->io.logit_rows = (void *)p, p += rows;
  c->io.logits = (void *)p, p += logits;
  if (e->hidden) c->io.hidden = (void *)p;
  p += hidden;
  if (e->hidden_in) c->io.hidden_in = (void *)p;
  c->io.past_len = &c->past_len;
  return e->device ? allocate_on_device(c) : SPECC_OK;
}

/* Makes a tensor over our memory and keeps it for ort_close. */
static int make_tensor(
    cache *c, void *data, ort_enum type, int64_t d0, int64_t d1, size_t rank, OrtValue **out) {
  int64_t dims[2] = {d0, d1}, count = rank == 2 ? d0 * d1 : d0;
  size_t bytes = (size_t)count * (type == ORT_INT64 ? 8 : 4);
  const engine *e = c->engine;
  int code = ort_check(e->lib,
      e->lib->api.CreateTensorWithDataAsOrtValue(e->memory, data, bytes, dims, rank, type, out),
      "could not make", "a tensor", "close other programs");
  if (!code) c->values[c->n_values++] = *out;
  return code;
}

static int make_kv(cache *c) {
  const engine *e = c->engine;
  const int64_t dims[4] = {1, e->kv_heads, e->capacity, e->head_dim};
  for (int32_t i = 0; i < 2 * e->layers; i++) {
    const OrtMemoryInfo *place = e->device ? e->device->memory : e->memory;
    OrtStatus *status = e->lib->api.CreateTensorWithDataAsOrtValue(place, c->kv + (size_t)i * c->kv_stride,
        count_kv_bytes(e), dims, 4, ort_cache_type(e), &c->values[i]);
    int code = ort_check(e->lib, status, "could not make", "a cache tensor", "close other programs");
    if (code) return code;
    c->n_values++;
  }
  OrtValue *past_len;
  if (e->is_masked) return make_tensor(c, &c->masked_past, ORT_INT64, 1, 0, 1, &past_len);
  return make_tensor(c, &c->past_len, ORT_INT32, 1, 0, 1, &past_len);
}

static int bind(const cache *c, const binding *b, bool output, const char *name, const OrtValue *value) {
  const ort_api *api = &c->engine->lib->api;
  OrtStatus *status = output ? api->BindOutput(b->io, name, value) : api->BindInput(b->io, name, value);
  return ort_check(c->engine->lib, status, "could not bind", name, EXPORT_AGAIN);
}

/* Past and present of a layer are one buffer: the engine writes the new rows in place. */
static int bind_kv(const cache *c, const binding *b) {
  int code = SPECC_OK;
  for (int32_t i = 0; !code && i < 2 * c->engine->layers; i++) {
    const char (*names)[24] = (const char (*)[24]) & c->engine->names[i / 2 * 4 + i % 2];
    code = bind(c, b, false, names[0], c->values[i]);
    if (!code) code = bind(c, b, true, names[2], c->values[i]);
  }
  return code;
}

/* A tensor over our memory, bound under a name. */
static int bind_new(cache *c, const binding *b, bool output, const char *name, void *data, ort_enum type,
    int64_t d0, int64_t d1, size_t rank) {
  OrtValue *value;
  int code = make_tensor(c, data, type, d0, d1, rank, &value);
  return code ? code : bind(c, b, output, name, value);
}

static int bind_rows(cache *c, const binding *b) {
  const engine *e = c->engine;
  int64_t rows = e->layers ? b->rows : 1;
  int code = SPECC_OK;
  if (e->layers) {
    code = bind_new(c, b, false, "input_ids", c->io.input_ids, ORT_INT64, 1, rows, 2);
    if (!code) code = bind_new(c, b, false, "position", c->io.position, ORT_INT64, 1, rows, 2);
    if (!code) code = bind_new(c, b, false, "logit_rows", c->io.logit_rows, ORT_INT64, b->n_logits, 0, 1);
    if (!code) code = bind(c, b, false, "past_len", c->values[2 * e->layers]);
  }
  if (!code && e->hidden_in)
    code = bind_new(c, b, false, "hidden", c->io.hidden_in, ORT_FLOAT, rows, e->hidden_in, 2);
  if (!code && e->hidden)
    code = bind_new(c, b, true, ort_hidden_name(e), c->io.hidden, ORT_FLOAT, rows, e->hidden, 2);
  return code ? code : bind_new(c, b, true, "logits", c->io.logits, ORT_FLOAT, b->n_logits, e->vocab, 2);
}

static int add_binding(cache *c, int32_t rows, int32_t n_logits) {
  const library *lib = c->engine->lib;
  binding *b = &c->bindings[c->n_bindings++];
  *b = (binding){.rows = rows, .n_logits = n_logits};
  int code = ort_check(lib, lib->api.CreateIoBinding(c->engine->session, &b->io), "could not make",
      "a binding", "close other programs");
  if (!code) code = bind_kv(c, b);
  return code ? code : bind_rows(c, b);
}

/* Calls are either whole (logits of every row) or the prefill's (the widest, one row of logits). */
static int add_bindings(cache *c) {
  const engine *e = c->engine;
  int code = SPECC_OK;
  for (int32_t i = 0; !code && i < e->n_widths; i++) code = add_binding(c, e->widths[i], e->widths[i]);
  return code || e->widest == 1 || !e->layers ? code : add_binding(c, e->widest, 1);
}

static int ort_open(void *self, void **out, specc_io *io) {
  int code = check_process(self);
  if (code) return code;
  cache *c = calloc(1, sizeof *c);
  if (!c) return specc_error(SPECC_E_MEMORY, "no memory left for a cache; close other programs");
  c->engine = self;
  code = allocate_buffers(c);
  if (!code) code = make_kv(c);
  if (!code) code = add_bindings(c);
  if (code) return ort_close(c), code;
  *out = c, *io = c->io;
  return SPECC_OK;
}

/* ------------------------------------------------------------------ a call */
static const binding *find_binding(const cache *c, int32_t rows, int32_t n_logits) {
  for (int32_t i = 0; i < c->n_bindings; i++)
    if (c->bindings[i].rows == rows && c->bindings[i].n_logits == n_logits) return &c->bindings[i];
  return NULL;
}

static bool all_within(const int64_t *values, int32_t n, int64_t end) {
  for (int32_t i = 0; i < n; i++)
    if (values[i] < 0 || values[i] >= end) return false;
  return true;
}

/* The engine's attention hangs or writes past its buffers on lengths that do not fit, so they never reach it.
 */
static int check_call(const cache *c, int32_t rows, int32_t n_logits) {
  const engine *e = c->engine;
  if (!e->layers) return SPECC_OK; /* an engine without a KV cache reads hidden states only */
  if (c->past_len < 0 || c->past_len > e->capacity - rows)
    return specc_error(SPECC_E_ARGUMENT,
        "a call of %d rows at length %d does not fit %d cache slots; lower the length", rows, c->past_len,
        e->capacity);
  if (!all_within(c->io.input_ids, rows, e->n_ids))
    return specc_error(SPECC_E_ARGUMENT, "a call of %d rows holds a token id outside 0..%d; check the ids",
        rows, e->n_ids - 1);
  if (!all_within(c->io.position, rows, e->capacity))
    return specc_error(SPECC_E_ARGUMENT,
        "a call of %d rows holds a position outside 0..%d; check the positions", rows, e->capacity - 1);
  if (!all_within(c->io.logit_rows, n_logits, rows))
    return specc_error(SPECC_E_ARGUMENT,
        "a call of %d rows asks for the logits of another row; ask for 0..%d", rows, rows - 1);
  return SPECC_OK;
}

static int ort_run(void *opened, int32_t rows, int32_t n_logits) {
  cache *c = opened;
  const library *lib = c->engine->lib;
  const binding *b = find_binding(c, rows, n_logits);
  if (!b)
    return specc_error(SPECC_E_ARGUMENT,
        "a call of %d rows with logits of %d is not one that the engine lists; use a listed width for both, "
        "or %d rows with 1",
        rows, n_logits, c->engine->widest);
  int code = check_process(c->engine);
  if (!code) code = check_call(c, rows, n_logits);
  if (code) return code;
  c->masked_past = c->past_len;
  uint64_t mode = enter_arithmetic();
  OrtStatus *status = lib->api.RunWithBinding(c->engine->session, NULL, b->io);
  leave_arithmetic(mode);
  return ort_check(lib, status, "failed in", "a call", "check the bundle with `specc gate`");
}

/* A masked engine multiplies stale entries by a probability of 0, and 0 * NaN is NaN. So the poison is
 * limited to large finite values, as a cache could hold. */
static float limit_poison(float value) {
  return value != value ? 77.0f : value > 256.0f ? 256.0f : value < -256.0f ? -256.0f : value;
}

static int ort_poison(void *opened, int32_t from, float value) {
  cache *c = opened;
  const engine *e = c->engine;
  if (from < 0 || from > e->capacity)
    return specc_error(
        SPECC_E_ARGUMENT, "slot %d is outside 0..%d; poison from a slot of the cache", from, e->capacity);
  if (e->is_masked) value = limit_poison(value);
  if (e->device) return ort_device_fill(e->device, &c->there, from, value);
  size_t head = (size_t)e->capacity * (size_t)e->head_dim, first = (size_t)from * (size_t)e->head_dim,
         item = cache_item(e->cache_type);
  uint32_t bits = cache_bits(e->cache_type, value);
  for (int32_t i = 0; i < 2 * e->layers * e->kv_heads; i++) {
    unsigned char *slots =
        c->kv + (size_t)(i / e->kv_heads) * c->kv_stride + (size_t)(i % e->kv_heads) * head * item;
    for (size_t j = first; j < head; j++) memcpy(slots + j * item, &bits, item);
  }
  return SPECC_OK;
}

/* ------------------------------------------------------------------ what a program calls */
static int refuse_number(const char *name, int64_t value, int64_t low, int64_t high) {
  return specc_error(SPECC_E_ARGUMENT, "engine option %s is %lld; it must be from %lld to %lld", name,
      (long long)value, (long long)low, (long long)high);
}

static int check_options(const specc_ort_options *o) {
  if (!o || !o->model) return specc_error(SPECC_E_ARGUMENT, "no graph file was named; set model");
  if (o->threads < 0 || o->threads > 1024) return refuse_number("threads", o->threads, 0, 1024);
  if (o->cache_type < SPECC_CACHE_F32 || o->cache_type > SPECC_CACHE_BF16)
    return refuse_number("cache_type", o->cache_type, SPECC_CACHE_F32, SPECC_CACHE_BF16);
  if (o->n_provider_options < 0 || o->n_provider_options > SPECC_MAX_PROVIDER_OPTIONS)
    return refuse_number("n_provider_options", o->n_provider_options, 0, SPECC_MAX_PROVIDER_OPTIONS);
  if (o->vocab < 1) return refuse_number("vocab", o->vocab, 1, INT32_MAX);
  if (o->n_ids < 0 || o->n_ids > 1 << 24) return refuse_number("n_ids", o->n_ids, 0, 1 << 24);
  if (o->hidden < 0 || o->hidden > MAX_HIDDEN) return refuse_number("hidden", o->hidden, 0, MAX_HIDDEN);
  if (o->hidden_in < 0 || o->hidden_in > MAX_HIDDEN)
    return refuse_number("hidden_in", o->hidden_in, 0, MAX_HIDDEN);
  if (!o->layers && o->hidden_in)
    return o->n_widths == 1 && o->widths[0] >= 1 && o->widths[0] <= SPECC_MAX_K
               ? SPECC_OK
               : refuse_number("widths", o->n_widths ? o->widths[0] : 0, 1, SPECC_MAX_K);
  if (o->layers < 1 || o->layers > MAX_LAYERS) return refuse_number("layers", o->layers, 1, MAX_LAYERS);
  if (o->kv_heads < 1 || o->kv_heads > 4096) return refuse_number("kv_heads", o->kv_heads, 1, 4096);
  if (o->head_dim < 1 || o->head_dim > 4096) return refuse_number("head_dim", o->head_dim, 1, 4096);
  if (o->n_widths < 1 || o->n_widths > SPECC_MAX_WIDTHS)
    return refuse_number("n_widths", o->n_widths, 1, SPECC_MAX_WIDTHS);
  for (int32_t i = 0; i < o->n_widths; i++)
    if (o->widths[i] < (i ? o->widths[i - 1] + 1 : 1) || o->widths[i] > 65536)
      return refuse_number("widths", o->widths[i], i ? o->widths[i - 1] + 1LL : 1, 65536);
  int64_t slot = 8LL * o->layers * o->kv_heads * o->head_dim, widest = o->widths[o->n_widths - 1];
  if (o->capacity < widest || o->capacity > MAX_BYTES / slot)
    return refuse_number("capacity", o->capacity, widest, MAX_BYTES / slot);
  return SPECC_OK;
}

static bool fill_engine(engine *e, const specc_ort_options *o) {
  static const char *const patterns[4] = {"past_k", "past_v", "present_k", "present_v"};
  e->vocab = o->vocab, e->layers = o->layers, e->kv_heads = o->kv_heads, e->head_dim = o->head_dim;
  e->hidden = o->hidden, e->hidden_in = o->hidden_in, e->cache_type = o->cache_type;
  e->n_ids = o->n_ids ? o->n_ids : o->vocab;
  e->capacity = o->capacity, e->n_widths = o->n_widths, e->widest = o->widths[o->n_widths - 1];
  memcpy(e->widths, o->widths, sizeof e->widths);
  e->names = calloc(4 * (size_t)o->layers + 1, sizeof *e->names);
  for (int32_t i = 0; e->names && i < 4 * o->layers; i++)
    snprintf(e->names[i], sizeof e->names[i], "%s.%d", patterns[i % 4], i / 4);
  return e->names != NULL;
}

static int open_engine(engine *e, const specc_ort_options *o) {
  int threads = o->threads ? o->threads : (int)sysconf(_SC_NPROCESSORS_ONLN);
  int code = ort_acquire(o->library, o->provider != NULL, &e->lib);
  if (code) return code;
  code =
      ort_check(e->lib, e->lib->api.CreateCpuMemoryInfo(ORT_ARENA_ALLOCATOR, ORT_MEMORY_DEFAULT, &e->memory),
          "could not describe", "memory", "install another version");
  if (!code && o->provider) code = ort_device_open(&e->device, e->lib, o);
  if (!code) code = create_session(e, o, threads > 0 ? threads : 1);
  return code ? code : ort_signature(e, o->model);
}

int specc_ort_backend(const specc_ort_options *options, specc_backend *backend) {
  int code = check_options(options);
  if (code) return code;
  engine *e = calloc(1, sizeof *e);
  if (!e || !fill_engine(e, options))
    return free(e), specc_error(SPECC_E_MEMORY, "no memory left for an engine; close other programs");
  e->opener = (int32_t)getpid();
  uint64_t mode = enter_arithmetic(); /* the session's threads inherit it */
  code = open_engine(e, options);
  leave_arithmetic(mode);
  if (code) return ort_release(e), code;
  *backend = (specc_backend){.name = "ort",
      .version = e->lib->version,
      .vocab = e->vocab,
      .capacity = e->capacity,
      .hidden = e->hidden,
      .n_widths = e->n_widths,
      .self = e,
      .open = ort_open,
      .run = ort_run,
      .poison = ort_poison,
      .close = ort_close,
      .release = ort_release};
  memcpy(backend->widths, e->widths, sizeof e->widths);
  if (e->device) backend->device = e->device->gpu.name, backend->fingerprint = e->device->gpu.fingerprint;
  return SPECC_OK;
}
