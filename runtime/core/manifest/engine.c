/* engine.c - an engine's entry in the manifest to a backend that runs it. */
#include "core/manifest/engine.h"
#include "core/io/error.h"
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static int read_widths(const manifest *m, const json *engine, const char *section, specc_ort_options *o) {
  const json *list = json_array(engine, "widths");
  if (!list || list->n < 1 || list->n > SPECC_MAX_WIDTHS)
    return manifest_refuse(m, section, "widths", "a list of 1 to 24 row counts");
  for (const json *width = list->first; width; width = width->next) {
    int64_t value, low = o->n_widths ? o->widths[o->n_widths - 1] + 1 : 1;
    if (!json_int(width, low, 65536, &value))
      return manifest_refuse(m, section, "widths", "a rising list of row counts up to 65536");
    o->widths[o->n_widths++] = (int32_t)value;
  }
  return SPECC_OK;
}

static int read_engine(const manifest *m, const json *engine, const char *section, specc_ort_options *o) {
  bool head = json_get(engine, "hidden_in"); /* may have a reduced vocabulary, and no cache */
  int code = manifest_int(m, engine, section, "vocab", head ? 1 : m->n_ids, 1 << 24, &o->vocab);
  if (!code) code = manifest_int(m, engine, section, "layers", !head, 1024, &o->layers);
  if (!code) code = manifest_int(m, engine, section, "kv_heads", 1, 4096, &o->kv_heads);
  if (!code) code = manifest_int(m, engine, section, "head_dim", 1, 4096, &o->head_dim);
  if (!code && json_get(engine, "hidden"))
    code = manifest_int(m, engine, section, "hidden", 1, 1 << 20, &o->hidden);
  if (head) o->n_ids = m->n_ids;
  if (!code && head) code = manifest_int(m, engine, section, "hidden_in", 1, 1 << 20, &o->hidden_in);
  if (!code) code = read_widths(m, engine, section, o);
  if (code || !o->layers) return code;
  return manifest_int(
      m, engine, section, "capacity", m->context + o->widths[o->n_widths - 1], INT32_MAX, &o->capacity);
}

static int read_cache_type(const manifest *m, const json *engine, const char *section, int32_t *type) {
  static const char *const names[] = {"float32", "float16", "bfloat16", "float8"}; /* by SPECC_CACHE_ */
  const char *name = json_string(engine, "cache_dtype");
  *type = SPECC_CACHE_F32;
  if (!json_get(engine, "cache_dtype")) return SPECC_OK;
  for (int32_t i = 0; name && i < 4; i++)
    if (!strcmp(name, names[i])) return *type = i, SPECC_OK;
  return manifest_refuse(m, section, "cache_dtype", "float32, float16, bfloat16 or float8");
}

/* The provider that computes the graph, with options that ONNX Runtime takes as they are. */
static int read_provider(const manifest *m, const json *engine, const char *section, specc_ort_options *o) {
  const json *provider = json_get(engine, "provider"), *options = json_object(provider, "options");
  if (!provider) return SPECC_OK;
  o->provider_library = m->options->provider_library;
  int code = manifest_string(m, provider, section, "provider.name", &o->provider);
  o->provider = json_string(provider, "name");
  if (!o->provider) return code;
  if (!options) return manifest_refuse(m, section, "provider.options", "an object");
  for (const json *option = options->first; option; option = option->next) {
    if (o->n_provider_options == SPECC_MAX_PROVIDER_OPTIONS || option->kind != JSON_STRING)
      return manifest_refuse(m, section, "provider.options", "an object of at most 24 strings");
    o->provider_keys[o->n_provider_options] = option->key;
    o->provider_values[o->n_provider_options++] = option->text;
  }
  return SPECC_OK;
}

static int open_ort(const manifest *m, const json *engine, const char *section, specc_ort_options *o,
    specc_backend *backend) {
  int code = read_cache_type(m, engine, section, &o->cache_type);
  if (!code) code = read_provider(m, engine, section, o);
  return code ? code : specc_ort_backend(o, backend);
}

/* The manifest holds the plan's hash twice: beside what the plan was built for, and in the list of files. A
 * plan that was exchanged for another one makes them differ. */
static int check_plan(const manifest *m, const json *engine, const char *section, const char *file) {
  const char *sha256;
  int code = manifest_hash(m, engine, section, "plan_sha256", &sha256);
  if (code) return code;
  const json *files = json_array(m->root, "files");
  for (const json *entry = files->first; entry; entry = entry->next)
    if (!strcmp(json_string(entry, "path"), file) && !strcmp(json_string(entry, "sha256"), sha256))
      return SPECC_OK;
  return specc_error(SPECC_E_FORMAT,
      "bundle %s: engine %.256s is not the one that %s describes: its hash is not plan_sha256; build or "
      "finalize the bundle again",
      m->options->folder, file, section);
}

static int open_tensorrt(const manifest *m, const json *engine, const char *section,
    const specc_ort_options *read, bool rtx, specc_backend *backend) {
  specc_tensorrt_options o = {.plan = read->model,
      .library = m->options->tensorrt_library,
      .rtx = rtx,
      .vocab = read->vocab,
      .hidden = read->hidden,
      .layers = read->layers,
      .kv_heads = read->kv_heads,
      .head_dim = read->head_dim,
      .capacity = read->capacity,
      .n_widths = read->n_widths};
  const char *update;
  memcpy(o.widths, read->widths, sizeof o.widths);
  int code = manifest_string(m, engine, section, "tensorrt", &o.version);
  if (!code) code = manifest_string(m, engine, section, "platform", &o.platform);
  if (!code) code = manifest_int(m, engine, section, "sm", 30, 999, &o.sm);
  if (!code) code = read_cache_type(m, engine, section, &o.cache_type);
  if (!code) code = manifest_string(m, engine, section, "cache_update", &update);
  if (!code && strcmp(update, "in-place") && strcmp(update, "rows"))
    code = manifest_refuse(m, section, "cache_update", "in-place or rows");
  if (!code) code = check_plan(m, engine, section, json_string(engine, "file"));
  const json *stripped = json_get(engine, "stripped");
  if (!code && stripped && stripped->truth)
    return specc_error(SPECC_E_UNSUPPORTED,
        "engine %.256s of bundle %s holds no weights (stripped), and nothing here refits them; build or "
        "finalize the bundle again",
        json_string(engine, "file"), m->options->folder);
  o.rows_out = !code && !strcmp(update, "rows");
  return code ? code : specc_tensorrt_backend(&o, backend);
}

/* A bundle for a device whose engines only that device can build. */
static bool is_unfinished(const json *engine) {
  const json *flag = json_get(engine, "finalize");
  return flag && flag->truth;
}

int open_engine(const manifest *m, const char *name, specc_backend *backend) {
  specc_ort_options o = {.library = m->options->engine_library, .threads = m->threads};
  const json *engine;
  const char *file, *kind;
  char section[32], path[PATH_BYTES];
  snprintf(section, sizeof section, "engines.%s", name);
  int code = manifest_engine(m, name, &engine);
  if (!code) code = manifest_string(m, engine, section, "backend", &kind);
  if (!code && is_unfinished(engine))
    return specc_error(SPECC_E_UNSUPPORTED,
        "bundle %s holds graphs, not engines, for its device; run `specc finalize %s` there",
        m->options->folder, m->options->folder);
  if (!code) code = manifest_string(m, engine, section, "file", &file);
  if (!code) code = manifest_file(m, file, path);
  if (!code) code = read_engine(m, engine, section, &o);
  o.model = path;
  if (code) return code;
  o.shares_cores = json_get(json_get(m->root, "engines"), "draft") != NULL;
  if (!strcmp(kind, "ort")) return open_ort(m, engine, section, &o, backend);
  if (!strcmp(kind, "tensorrt")) return open_tensorrt(m, engine, section, &o, false, backend);
  if (!strcmp(kind, "tensorrt-rtx")) return open_tensorrt(m, engine, section, &o, true, backend);
  return specc_error(SPECC_E_UNSUPPORTED,
      "bundle %s: engine %s needs the backend %.32s, but this library has ort, tensorrt and tensorrt-rtx; "
      "update specc",
      m->options->folder, name, kind);
}

void release_engine(specc_backend *engine) {
  if (engine->release) engine->release(engine->self);
}
