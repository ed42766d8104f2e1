/* ort_signature.c - the graph's inputs and outputs against specc's signature: names, types, shapes. */
#include "backends/ort/ort_engine.h"
#include "core/io/error.h"
#include <stdio.h>

typedef struct tensor_rule { /* what the graph must declare for one input or output */
  const char *name;
  ort_enum type;
  size_t rank;
  int64_t dims[4]; /* -1: rows, or rows whose logits are wanted */
} tensor_rule;

static const char *type_name(ort_enum type) {
  return type == ORT_FLOAT      ? "float32"
         : type == ORT_FLOAT16  ? "float16"
         : type == ORT_BFLOAT16 ? "bfloat16"
         : type == ORT_INT32    ? "int32"
         : type == ORT_INT64    ? "int64"
                                : "another type";
}

ort_enum ort_cache_type(const engine *e) {
  return e->cache_type == SPECC_CACHE_F16    ? ORT_FLOAT16
         : e->cache_type == SPECC_CACHE_BF16 ? ORT_BFLOAT16
                                             : ORT_FLOAT;
}

static tensor_rule cache_rule(const engine *e, const char *name) {
  return (tensor_rule){name, ort_cache_type(e), 4, {1, e->kv_heads, e->capacity, e->head_dim}};
}

static tensor_rule input_rule(const engine *e, int32_t i) {
  if (e->hidden_in && i-- == 0)
    return (tensor_rule){"hidden", ORT_FLOAT, 2, {e->layers ? -1 : 1, e->hidden_in}};
  switch (i) {
  case 0:
    return (tensor_rule){"input_ids", ORT_INT64, 2, {1, -1}};
  case 1:
    return (tensor_rule){"past_len", e->is_masked ? ORT_INT64 : ORT_INT32, 1, {1}};
  case 2:
    return (tensor_rule){"position", ORT_INT64, 2, {1, -1}};
  case 3:
    return (tensor_rule){"logit_rows", ORT_INT64, 1, {-1}};
  default:
    return cache_rule(e, e->names[(i - 4) / 2 * 4 + (i - 4) % 2]);
  }
}

const char *ort_hidden_name(const engine *e) {
  return e->hidden_in ? "hidden_next" : "hidden";
}

static tensor_rule output_rule(const engine *e, int32_t i) {
  if (i-- == 0) return (tensor_rule){"logits", ORT_FLOAT, 2, {e->layers ? -1 : e->widest, e->vocab}};
  if (e->hidden && i-- == 0) return (tensor_rule){ort_hidden_name(e), ORT_FLOAT, 2, {-1, e->hidden}};
  return cache_rule(e, e->names[i / 2 * 4 + 2 + i % 2]);
}

static int32_t count_inputs(const engine *e) {
  return (e->hidden_in > 0) + (e->layers ? 4 + 2 * e->layers : 0);
}
static int32_t count_outputs(const engine *e) {
  return 1 + (e->hidden > 0) + 2 * e->layers;
}

/* One side of the graph: its inputs or its outputs. */
typedef struct side {
  const char *noun;
  int32_t n; /* tensors that must be there */
  tensor_rule (*rule)(const engine *e, int32_t i);
  OrtStatus *(*count)(const OrtSession *, size_t *);
  OrtStatus *(*name)(const OrtSession *, size_t, OrtAllocator *, char **);
  OrtStatus *(*info)(const OrtSession *, size_t, OrtTypeInfo **);
} side;

static int refuse(const side *s, const char *model, const char *name, const char *what) {
  return specc_error(SPECC_E_FORMAT, "graph %s: %s %s %s; " EXPORT_AGAIN, model, s->noun, name, what);
}

/* An output may declare no shape at all, which reads as rank 0; the engine then checks it against the bound
 * buffer. */
static int check_shape(const engine *e, const side *s, const char *model, const tensor_rule *rule,
    const OrtTensorTypeAndShapeInfo *shape) {
  const ort_api *api = &e->lib->api;
  char what[96];
  int64_t dims[4];
  size_t rank = 0;
  int code = ort_check(e->lib, api->GetDimensionsCount(shape, &rank), "could not read", model, EXPORT_AGAIN);
  if (code || (rank == 0 && s->rule == output_rule)) return code;
  if (rank != rule->rank) {
    snprintf(what, sizeof what, "has %zu dimensions, not %zu", rank, rule->rank);
    return refuse(s, model, rule->name, what);
  }
  code = ort_check(e->lib, api->GetDimensions(shape, dims, rank), "could not read", model, EXPORT_AGAIN);
  for (size_t i = 0; !code && i < rank; i++) {
    if (dims[i] == rule->dims[i] || dims[i] < 0) continue;
    if (rule->dims[i] < 0)
      snprintf(
          what, sizeof what, "fixes dimension %zu to %lld, but rows must be free", i, (long long)dims[i]);
    else
      snprintf(what, sizeof what, "has %lld in dimension %zu, not %lld", (long long)dims[i], i,
          (long long)rule->dims[i]);
    code = refuse(s, model, rule->name, what);
  }
  return code;
}

static int check_type(
    const engine *e, const side *s, const char *model, const tensor_rule *rule, const OrtTypeInfo *info) {
  const OrtTensorTypeAndShapeInfo *shape = NULL;
  ort_enum type = 0;
  char what[96];
  int code = ort_check(
      e->lib, e->lib->api.CastTypeInfoToTensorInfo(info, &shape), "could not read", model, EXPORT_AGAIN);
  if (code) return code;
  if (!shape) return refuse(s, model, rule->name, "is not a tensor");
  code = ort_check(
      e->lib, e->lib->api.GetTensorElementType(shape, &type), "could not read", model, EXPORT_AGAIN);
  if (code) return code;
  if (type == rule->type) return check_shape(e, s, model, rule, shape);
  snprintf(what, sizeof what, "is of %s, not %s", type_name(type), type_name(rule->type));
  return refuse(s, model, rule->name, what);
}

static int check_named(
    const engine *e, const side *s, const char *model, size_t index, const char *name, bool *seen) {
  int32_t i = 0;
  while (i < s->n && strcmp(s->rule(e, i).name, name)) i++;
  if (i == s->n) return refuse(s, model, name, "is not one of specc's graph signature");
  seen[i] = true;
  OrtTypeInfo *info = NULL;
  tensor_rule rule = s->rule(e, i);
  int code = ort_check(e->lib, s->info(e->session, index, &info), "could not read", model, EXPORT_AGAIN);
  if (!code) code = check_type(e, s, model, &rule, info);
  if (info) e->lib->api.ReleaseTypeInfo(info);
  return code;
}

static int check_tensor(const engine *e, const side *s, const char *model, size_t index, bool *seen) {
  char *name = NULL;
  int code = ort_check(
      e->lib, s->name(e->session, index, e->lib->allocator, &name), "could not read", model, EXPORT_AGAIN);
  if (code) return code;
  code = check_named(e, s, model, index, name, seen);
  int freed = ort_check(
      e->lib, e->lib->api.AllocatorFree(e->lib->allocator, name), "could not read", model, EXPORT_AGAIN);
  return code ? code : freed;
}

static int check_side(const engine *e, const side *s, const char *model) {
  bool seen[2 * MAX_LAYERS + 5] = {false};
  size_t count = 0;
  int code = ort_check(e->lib, s->count(e->session, &count), "could not read", model, EXPORT_AGAIN);
  for (size_t i = 0; !code && i < count; i++) code = check_tensor(e, s, model, i, seen);
  for (int32_t i = 0; !code && i < s->n; i++)
    if (!seen[i]) code = refuse(s, model, s->rule(e, i).name, "is missing");
  return code;
}

/* Graphs of opset 24 write their cache at an int64 index, those with an attention of their own take an int32
 * length. */
static int read_past_type(engine *e, const char *model) {
  const ort_api *api = &e->lib->api;
  const OrtTensorTypeAndShapeInfo *shape = NULL;
  OrtTypeInfo *info = NULL;
  size_t n = 0;
  ort_enum type = 0;
  int code =
      ort_check(e->lib, api->SessionGetInputCount(e->session, &n), "could not read", model, EXPORT_AGAIN);
  for (size_t i = 0; !code && i < n && !info; i++) {
    char *name = NULL;
    code = ort_check(e->lib, api->SessionGetInputName(e->session, i, e->lib->allocator, &name),
        "could not read", model, EXPORT_AGAIN);
    bool found = !code && !strcmp(name, "past_len");
    if (!code)
      code = ort_check(
          e->lib, api->AllocatorFree(e->lib->allocator, name), "could not read", model, EXPORT_AGAIN);
    if (!code && found)
      code = ort_check(
          e->lib, api->SessionGetInputTypeInfo(e->session, i, &info), "could not read", model, EXPORT_AGAIN);
  }
  if (!code && info)
    code =
        ort_check(e->lib, api->CastTypeInfoToTensorInfo(info, &shape), "could not read", model, EXPORT_AGAIN);
  if (!code && shape)
    code = ort_check(e->lib, api->GetTensorElementType(shape, &type), "could not read", model, EXPORT_AGAIN);
  if (info) api->ReleaseTypeInfo(info);
  e->is_masked = type == ORT_INT64;
  return code;
}

int ort_signature(engine *e, const char *model) {
  const ort_api *api = &e->lib->api;
  const side inputs = {"input", count_inputs(e), input_rule, api->SessionGetInputCount,
      api->SessionGetInputName, api->SessionGetInputTypeInfo};
  const side outputs = {"output", count_outputs(e), output_rule, api->SessionGetOutputCount,
      api->SessionGetOutputName, api->SessionGetOutputTypeInfo};
  int code = read_past_type(e, model);
  if (!code) code = check_side(e, &inputs, model);
  return code ? code : check_side(e, &outputs, model);
}
