/* ort_ops.c - the operators of domain `specc` for ONNX Runtime: shapes and values are checked here, then
 * ops.h does the work.
 *
 * MatMul(x f32 [..., inputs], weights u8 [packed], norm f32 [inputs]?, bias f32 [kept]?,
 *     residual f32 [..., kept]?) -> y f32 [..., kept];
 *     attributes layout (WEIGHT_LAYOUT of kernels.h), kind (0 w4, 1 w4m, 2 w8), outputs, kept, gate (0, 1),
 *     epsilon
 *
 * Embedding(ids i64 [...], weights u8 [packed]) -> y f32 [..., inputs];
 *     attributes layout, kind, inputs, outputs
 *
 * Attention(qkv f32 [B, R, (heads + 2 kv_heads) head_dim], past_k f32 [B, kv_heads, capacity, head_dim],
 * past_v, past_len i32 [B], position i64 [B, R], cos f32 [positions, rotary / 2], sin, bias f32 [B, R,
 * capacity]?)
 *     -> y f32 [B, R, heads * head_dim], present_k, present_v (the very buffers of past_k and past_v, or
 * copies); attributes heads, kv_heads, scale, window, soft_cap
 *
 * A shape that does not fit, a length below 0 or beyond the capacity, an id or a position out of range is a
 * named error. */
#include "backends/ort/ort.h"
#include "backends/ort/ort_kernel.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static int64_t packed_bytes(const kernel *k, int64_t outputs, int64_t inputs) {
  return (outputs + GROUP - 1) / GROUP *
         (int64_t)group_bytes((enum weight_kind)k->kind, (int)(inputs / BLOCK));
}

/* ------------------------------------------------------------------ MatMul */
static OrtStatus *compute_matmul(void *self, OrtKernelContext *c) {
  const kernel *k = self;
  tensor x, w, norm, bias, residual;
  void *y;
  TRY(kernel_input(k, c, 0, &x));
  TRY(kernel_input(k, c, 1, &w));
  TRY(kernel_input(k, c, 2, &norm));
  TRY(kernel_input(k, c, 3, &bias));
  TRY(kernel_input(k, c, 4, &residual));
  NEED(x.rank >= 1 && x.dims[x.rank - 1] > 0, "specc::MatMul: x needs at least one dimension");
  int64_t inputs = x.dims[x.rank - 1], rows = x.count / inputs;
  NEED(inputs % BLOCK == 0 && inputs < 1 << 24,
      "specc::MatMul: x has %lld columns; a multiple of %d is needed", (long long)inputs, BLOCK);
  NEED(rows <= MOST, "specc::MatMul: x has %lld rows; at most %d are known", (long long)rows, MOST);
  NEED(w.count == packed_bytes(k, k->outputs, inputs),
      "specc::MatMul: %lld bytes of weights for %lld outputs of %lld inputs; %lld are needed",
      (long long)w.count, (long long)k->outputs, (long long)inputs,
      (long long)packed_bytes(k, k->outputs, inputs));
  NEED(!norm.data || norm.count == inputs, "specc::MatMul: the norm has %lld values for %lld inputs",
      (long long)norm.count, (long long)inputs);
  NEED(!bias.data || bias.count == k->kept, "specc::MatMul: the bias has %lld values for %lld outputs",
      (long long)bias.count, (long long)k->kept);
  NEED(!residual.data || residual.count == rows * k->kept,
      "specc::MatMul: the residual has %lld values for %lld rows of %lld", (long long)residual.count,
      (long long)rows, (long long)k->kept);
  x.dims[x.rank - 1] = k->kept;
  TRY(kernel_output(k, c, 0, x.dims, x.rank, &y));
  product p = {.kernels = k->kernels,
      .kind = (enum weight_kind)k->kind,
      .weights = w.data,
      .inputs = (int)inputs,
      .outputs = (int)((k->outputs + GROUP - 1) / GROUP * GROUP),
      .kept = (int)k->kept,
      .norm = norm.data,
      .epsilon = k->epsilon,
      .bias = bias.data,
      .gate = k->gate != 0};
  ort_pool ort_threads = {k, c};
  pool threads = {kernel_run_parallel, &ort_threads};
  if (!matmul(&p, x.data, (int)rows, residual.data, y, &threads))
    return kernel_fail(k, CODE_RUNTIME, "specc::MatMul: no memory for %lld rows", (long long)rows);
  return NULL;
}

/* ------------------------------------------------------------------ Embedding */
static OrtStatus *compute_embedding(void *self, OrtKernelContext *c) {
  const kernel *k = self;
  tensor ids, w;
  void *y;
  TRY(kernel_input(k, c, 0, &ids));
  TRY(kernel_input(k, c, 1, &w));
  NEED(ids.rank < MAX_RANK, "specc::Embedding: ids have too many dimensions");
  NEED(w.count == packed_bytes(k, k->outputs, k->inputs),
      "specc::Embedding: %lld bytes of weights for %lld rows of %lld", (long long)w.count,
      (long long)k->outputs, (long long)k->inputs);
  for (int64_t i = 0; i < ids.count; i++) {
    int64_t id = ((const int64_t *)ids.data)[i];
    NEED(id >= 0 && id < k->outputs, "specc::Embedding: id %lld is out of range; ids are 0 to %lld",
        (long long)id, (long long)k->outputs - 1);
  }
  ids.dims[ids.rank] = k->inputs;
  TRY(kernel_output(k, c, 0, ids.dims, ids.rank + 1, &y));
  for (int64_t i = 0; i < ids.count; i++)
    dequantize_row((enum weight_kind)k->kind, w.data, (int)k->inputs, ((const int64_t *)ids.data)[i],
        (float *)y + i * k->inputs);
  return NULL;
}

/* ------------------------------------------------------------------ Attention */
static OrtStatus *check_attention(const kernel *k, const tensor *qkv, const tensor *pk, const tensor *pv,
    const tensor *past, const tensor *position, const tensor *cosine, const tensor *sine,
    const tensor *bias) {
  NEED(qkv->rank == 3 && pk->rank == 4 && pv->rank == 4 && cosine->rank == 2 && sine->rank == 2,
      "specc::Attention: qkv has rank %zu, the cache %zu and %zu, cos %zu, sin %zu; 3, 4, 4, 2, 2 are needed",
      qkv->rank, pk->rank, pv->rank, cosine->rank, sine->rank);
  int64_t batch = qkv->dims[0], rows = qkv->dims[1], capacity = pk->dims[2], d = pk->dims[3];
  NEED(batch >= 1 && rows >= 1,
      "specc::Attention: %lld sequences of %lld rows; at least one of each is needed", (long long)batch,
      (long long)rows);
  NEED(!memcmp(pk->dims, pv->dims, sizeof pk->dims) && pk->dims[0] == batch && pk->dims[1] == k->kv_heads,
      "specc::Attention: the caches do not fit %lld sequences of %lld key heads", (long long)batch,
      (long long)k->kv_heads);
  NEED(d >= 8 && d % 8 == 0 && qkv->dims[2] == (k->heads + 2 * k->kv_heads) * d,
      "specc::Attention: qkv has %lld columns for %lld and %lld heads of %lld (a multiple of 8)",
      (long long)qkv->dims[2], (long long)k->heads, (long long)k->kv_heads, (long long)d);
  NEED(capacity <= MOST && d <= MOST && batch <= MOST / rows && batch * rows <= MOST / k->heads,
      "specc::Attention: %lld sequences of %lld rows over %lld slots of %lld are more than %d",
      (long long)batch, (long long)rows, (long long)capacity, (long long)d, MOST);
  NEED(past->count == batch && position->count == batch * rows,
      "specc::Attention: %lld lengths and %lld positions for %lld sequences of %lld rows",
      (long long)past->count, (long long)position->count, (long long)batch, (long long)rows);
  NEED(!memcmp(cosine->dims, sine->dims, sizeof cosine->dims) && cosine->dims[1] <= d / 2 &&
           cosine->dims[0] <= MOST,
      "specc::Attention: cos and sin do not fit heads of %lld", (long long)d);
  NEED(cosine->dims[1] == 0 || cosine->dims[0] >= 1,
      "specc::Attention: cos and sin hold no position; at least one is needed");
  NEED(!bias->data || bias->count == batch * rows * capacity,
      "specc::Attention: the bias has %lld values; %lld are needed", (long long)bias->count,
      (long long)(batch * rows * capacity));
  for (int64_t b = 0; b < batch; b++) {
    int32_t length = ((const int32_t *)past->data)[b];
    NEED(length >= 0 && length + rows <= capacity,
        "specc::Attention: length %d with %lld rows does not fit a cache of %lld", length, (long long)rows,
        (long long)capacity);
  }
  for (int64_t i = 0; i < position->count; i++)
    NEED(((const int64_t *)position->data)[i] >= 0, "specc::Attention: position %lld is negative",
        (long long)((const int64_t *)position->data)[i]);
  return NULL;
}

static OrtStatus *compute_attention(void *self, OrtKernelContext *c) {
  const kernel *k = self;
  tensor qkv, pk, pv, past, position, cosine, sine, bias;
  void *y, *nk, *nv;
  TRY(kernel_input(k, c, 0, &qkv));
  TRY(kernel_input(k, c, 1, &pk));
  TRY(kernel_input(k, c, 2, &pv));
  TRY(kernel_input(k, c, 3, &past));
  TRY(kernel_input(k, c, 4, &position));
  TRY(kernel_input(k, c, 5, &cosine));
  TRY(kernel_input(k, c, 6, &sine));
  TRY(kernel_input(k, c, 7, &bias));
  TRY(check_attention(k, &qkv, &pk, &pv, &past, &position, &cosine, &sine, &bias));
  int64_t out[3] = {qkv.dims[0], qkv.dims[1], k->heads * pk.dims[3]};
  TRY(kernel_output(k, c, 0, out, 3, &y));
  TRY(kernel_output(k, c, 1, pk.dims, 4, &nk));
  TRY(kernel_output(k, c, 2, pv.dims, 4, &nv));
  if (nk != pk.data) memcpy(nk, pk.data, (size_t)pk.count * sizeof(float));
  if (nv != pv.data) memcpy(nv, pv.data, (size_t)pv.count * sizeof(float));
  attention t = {.kernels = k->kernels,
      .heads = (int)k->heads,
      .kv_heads = (int)k->kv_heads,
      .head_dim = (int)pk.dims[3],
      .capacity = (int)pk.dims[2],
      .scale = k->scale,
      .soft_cap = k->soft_cap,
      .window = (int)k->window,
      .rotary = (int)cosine.dims[1] * 2,
      .cos = cosine.data,
      .sin = sine.data,
      .positions = (int)cosine.dims[0]};
  ort_pool ort_threads = {k, c};
  pool threads = {kernel_run_parallel, &ort_threads};
  if (!attend(
          &t, qkv.data, past.data, position.data, bias.data, (int)out[0], (int)out[1], nk, nv, y, &threads))
    return kernel_fail(k, CODE_RUNTIME, "specc::Attention: no memory for %lld rows", (long long)out[1]);
  return NULL;
}

/* ------------------------------------------------------------------ kernels from attributes */
static OrtStatus *make(const void *table, kernel **out) {
  op_api api;
  kernel_read_api(&api, table);
  kernel *k = calloc(1, sizeof *k);
  if (!k) return api.CreateStatus(CODE_RUNTIME, "specc: no memory for a kernel");
  k->api = api;
  k->kernels = kernels_best();
  *out = k;
  return NULL;
}

static OrtStatus *whole(
    const kernel *k, const OrtKernelInfo *info, const char *name, int64_t low, int64_t high, int64_t *value) {
  TRY(k->api.KernelInfoGetAttribute_int64(info, name, value));
  NEED(*value >= low && *value <= high, "specc: attribute %s is %lld; %lld to %lld is allowed", name,
      (long long)*value, (long long)low, (long long)high);
  return NULL;
}

static OrtStatus *read_weights(kernel *k, const OrtKernelInfo *info) {
  int64_t layout;
  OrtStatus *missing = k->api.KernelInfoGetAttribute_int64(info, "layout", &layout);
  if (missing) {
    k->api.ReleaseStatus(missing);
    layout = 1;
  }
  NEED(layout == WEIGHT_LAYOUT,
      "specc: the weights are packed in layout %lld and this library reads layout %d; build the bundle again",
      (long long)layout, WEIGHT_LAYOUT);
  TRY(whole(k, info, "kind", 0, WEIGHT_KINDS - 1, &k->kind));
  return whole(k, info, "outputs", 1, 1 << 24, &k->outputs);
}

static OrtStatus *read_matmul(kernel *k, const OrtKernelInfo *info) {
  TRY(read_weights(k, info));
  TRY(whole(k, info, "kept", 1, k->outputs, &k->kept));
  TRY(whole(k, info, "gate", 0, 1, &k->gate));
  NEED(!k->gate || (k->outputs % GROUP == 0 && k->kept == k->outputs / 2),
      "specc::MatMul: a gate needs outputs in pairs of 8 and half of them kept");
  return k->api.KernelInfoGetAttribute_float(info, "epsilon", &k->epsilon);
}

static OrtStatus *read_embedding(kernel *k, const OrtKernelInfo *info) {
  TRY(read_weights(k, info));
  TRY(whole(k, info, "inputs", BLOCK, 1 << 24, &k->inputs));
  NEED(k->inputs % BLOCK == 0, "specc::Embedding: %lld columns; a multiple of %d is needed",
      (long long)k->inputs, BLOCK);
  return NULL;
}

static OrtStatus *read_attention(kernel *k, const OrtKernelInfo *info) {
  TRY(whole(k, info, "heads", 1, 4096, &k->heads));
  TRY(whole(k, info, "kv_heads", 1, k->heads, &k->kv_heads));
  TRY(whole(k, info, "window", 0, 1 << 30, &k->window));
  NEED(k->heads % k->kv_heads == 0, "specc::Attention: %lld heads cannot share %lld key heads evenly",
      (long long)k->heads, (long long)k->kv_heads);
  TRY(k->api.KernelInfoGetAttribute_float(info, "soft_cap", &k->soft_cap));
  return k->api.KernelInfoGetAttribute_float(info, "scale", &k->scale);
}

#define CREATE(name)                                                                                         \
  static OrtStatus *create_##name(                                                                           \
      const OrtCustomOp *op, const void *table, const OrtKernelInfo *info, void **out) {                     \
    kernel *k = NULL;                                                                                        \
    (void)op;                                                                                                \
    TRY(make(table, &k));                                                                                    \
    OrtStatus *status = read_##name(k, info);                                                                \
    if (status) {                                                                                            \
      free(k);                                                                                               \
      return status;                                                                                         \
    }                                                                                                        \
    *out = k;                                                                                                \
    return NULL;                                                                                             \
  }
CREATE(matmul)
CREATE(embedding)
CREATE(attention)

/* ------------------------------------------------------------------ declarations */
static ort_enum matmul_input(const OrtCustomOp *o, size_t i) {
  (void)o;
  return i == 1 ? ORT_UINT8 : ORT_FLOAT;
}
static ort_enum embedding_input(const OrtCustomOp *o, size_t i) {
  (void)o;
  return i == 1 ? ORT_UINT8 : ORT_INT64;
}
static ort_enum attention_input(const OrtCustomOp *o, size_t i) {
  (void)o;
  return i == 3 ? ORT_INT32 : i == 4 ? ORT_INT64 : ORT_FLOAT;
}
static ort_enum float_output(const OrtCustomOp *o, size_t i) {
  (void)o;
  (void)i;
  return ORT_FLOAT;
}
static ort_enum optional_from_2(const OrtCustomOp *o, size_t i) {
  (void)o;
  return i >= 2;
}
static ort_enum optional_from_7(const OrtCustomOp *o, size_t i) {
  (void)o;
  return i >= 7;
}
static ort_enum required(const OrtCustomOp *o, size_t i) {
  (void)o;
  (void)i;
  return 0;
}
static ort_signed_enum default_memory(const OrtCustomOp *o, size_t i) {
  (void)o;
  (void)i;
  return 0;
}
static const char *provider(const OrtCustomOp *o) {
  (void)o;
  return "CPUExecutionProvider";
}
static void destroy(void *k) {
  free(k);
}
static int one(const OrtCustomOp *o) {
  (void)o;
  return 1;
}
static int any_version(const OrtCustomOp *o) {
  (void)o;
  return 0x7fffffff;
}
static size_t no_pairs(int **a, int **b) {
  *a = *b = NULL;
  return 0;
}
static void no_release(int *a, int *b) {
  (void)a;
  (void)b;
}

#define OP(lower, Upper, inputs, outputs, characteristic)                                                    \
  static const char *lower##_name(const OrtCustomOp *o) {                                                    \
    (void)o;                                                                                                 \
    return #Upper;                                                                                           \
  }                                                                                                          \
  static size_t lower##_inputs(const OrtCustomOp *o) {                                                       \
    (void)o;                                                                                                 \
    return inputs;                                                                                           \
  }                                                                                                          \
  static size_t lower##_outputs(const OrtCustomOp *o) {                                                      \
    (void)o;                                                                                                 \
    return outputs;                                                                                          \
  }                                                                                                          \
  static const OrtCustomOp lower##_op = {.version = ORT_OP_VERSION,                                          \
      .GetName = lower##_name,                                                                               \
      .GetExecutionProviderType = provider,                                                                  \
      .GetInputType = lower##_input,                                                                         \
      .GetInputTypeCount = lower##_inputs,                                                                   \
      .GetOutputType = float_output,                                                                         \
      .GetOutputTypeCount = lower##_outputs,                                                                 \
      .KernelDestroy = destroy,                                                                              \
      .GetInputCharacteristic = characteristic,                                                              \
      .GetOutputCharacteristic = required,                                                                   \
      .GetInputMemoryType = default_memory,                                                                  \
      .GetVariadicInputMinArity = one,                                                                       \
      .GetVariadicInputHomogeneity = one,                                                                    \
      .GetVariadicOutputMinArity = one,                                                                      \
      .GetVariadicOutputHomogeneity = one,                                                                   \
      .CreateKernelV2 = create_##lower,                                                                      \
      .KernelComputeV2 = compute_##lower,                                                                    \
      .GetStartVersion = one,                                                                                \
      .GetEndVersion = any_version,                                                                          \
      .GetMayInplace = no_pairs,                                                                             \
      .ReleaseMayInplace = no_release,                                                                       \
      .GetAliasMap = no_pairs,                                                                               \
      .ReleaseAliasMap = no_release};
OP(matmul, MatMul, 5, 1, optional_from_2)
OP(embedding, Embedding, 2, 1, required)
OP(attention, Attention, 8, 3, optional_from_7)

/* The domain outlives every session: it is made once for each function table that asks (a process may hold
 * two). */
OrtStatus *RegisterCustomOps(OrtSessionOptions *options, const ort_base *base) {
  enum { TABLES = 8 };
  static struct {
    const void *table;
    OrtCustomOpDomain *domain;
  } domains[TABLES];
  static atomic_flag lock = ATOMIC_FLAG_INIT;
  const void *table = base->GetApi(ORT_OP_VERSION);
  op_api api;
  OrtStatus *status = NULL;
  OrtCustomOpDomain *domain = NULL;
  if (!table) return NULL;
  kernel_read_api(&api, table);
  while (atomic_flag_test_and_set(&lock)) {
  }
  int i = 0;
  while (i < TABLES - 1 && domains[i].table && domains[i].table != table) i++;
  if (domains[i].table == table) domain = domains[i].domain;
  if (!domain) {
    status = api.CreateCustomOpDomain("specc", &domain);
    if (!status) status = api.CustomOpDomain_Add(domain, &matmul_op);
    if (!status) status = api.CustomOpDomain_Add(domain, &embedding_op);
    if (!status) status = api.CustomOpDomain_Add(domain, &attention_op);
    if (!status) {
      domains[i].table = table;
      domains[i].domain = domain;
    }
  }
  atomic_flag_clear(&lock);
  return status ? status : api.AddCustomOpDomain(options, domain);
}
