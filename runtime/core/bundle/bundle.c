/* bundle.c - opens a bundle: manifest, files, tokenizer table, engines, drafter, certificate. */
#include "core/certificate/certificate.h"
#include "core/io/error.h"
#include "core/io/files.h"
#include "core/io/json.h"
#include "core/io/sha256.h"
#include "specc_judge.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_EOS 256
#define MAX_TABLE_BYTES ((size_t)256 << 20)
#define BUILD_AGAIN "build the bundle again"

typedef struct bundle {
  const specc_open_options *options;
  char *text; /* manifest.json */
  size_t n_text;
  json_document manifest;
  const json *root;
  int32_t threads, context, k_max, n_ids, n_eos;
  int32_t eos[MAX_EOS];
  char *table; /* id_bytes.bin */
  id_bytes ids;
} bundle;

/* ------------------------------------------------------------------ values of the manifest */
static int bad_value(const bundle *b, const char *section, const char *key, const char *expected) {
  return specc_error(SPECC_E_FORMAT, "bundle %s: %s.%s in manifest.json is not %s; " BUILD_AGAIN,
      b->options->folder, section, key, expected);
}

static int need_object(
    const bundle *b, const json *parent, const char *section, const char *key, const json **out) {
  *out = json_object(parent, key);
  return *out ? SPECC_OK : bad_value(b, section, key, "an object");
}

static int need_string(
    const bundle *b, const json *object, const char *section, const char *key, const char **out) {
  *out = json_string(object, key);
  return *out ? SPECC_OK : bad_value(b, section, key, "a string");
}

static int need_int(const bundle *b, const json *object, const char *section, const char *key, int32_t low,
    int32_t high, int32_t *out) {
  int64_t value;
  char expected[64];
  if (json_int(json_get(object, key), low, high, &value)) return *out = (int32_t)value, SPECC_OK;
  snprintf(expected, sizeof expected, "a whole number from %d to %d", low, high);
  return bad_value(b, section, key, expected);
}

static bool is_hash(const char *text) {
  return text && strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64;
}

static int need_hash(
    const bundle *b, const json *object, const char *section, const char *key, const char **out) {
  *out = json_string(object, key);
  return is_hash(*out) ? SPECC_OK : bad_value(b, section, key, "a SHA-256 in hexadecimal");
}

/* ------------------------------------------------------------------ manifest.json */
static int check_format(const bundle *b) {
  int64_t format;
  if (!json_int(json_get(b->root, "format"), 1, INT64_MAX, &format))
    return bad_value(b, "manifest", "format", "a whole number from 1");
  if (format <= SPECC_FORMAT) return SPECC_OK;
  return specc_error(SPECC_E_FORMAT,
      "bundle %s has format %lld, but this library reads formats up to %d; update specc or build the bundle "
      "with this version",
      b->options->folder, (long long)format, SPECC_FORMAT);
}

/* The digest is the SHA-256 of the file with its own 64 digits read as zeros. */
static int check_digest(const bundle *b) {
  const json *value = json_get(b->root, "digest");
  const char *digest;
  char zeros[64], hex[65];
  int code = need_hash(b, b->root, "manifest", "digest", &digest);
  if (code) return code;
  size_t at = value->at + 1;
  if (b->n_text - at < 65 || memcmp(b->text + at, digest, 64))
    return bad_value(b, "manifest", "digest", "written in plain digits");
  memset(zeros, '0', sizeof zeros);
  specc_sha256 h;
  specc_sha256_begin(&h);
  specc_sha256_add(&h, b->text, at);
  specc_sha256_add(&h, zeros, sizeof zeros);
  specc_sha256_add(&h, b->text + at + 64, b->n_text - at - 64);
  specc_sha256_end(&h, hex);
  if (!strcmp(hex, digest)) return SPECC_OK;
  return specc_error(SPECC_E_FORMAT,
      "%s/manifest.json was changed: its digest is %.12s..., but it says %.12s...; copy the bundle again or "
      "build it again",
      b->options->folder, hex, digest);
}

static int read_manifest(bundle *b) {
  char path[PATH_BYTES];
  int code = file_join(b->options->folder, "manifest.json", path);
  if (!code) code = file_read(path, JSON_MAX_BYTES, &b->text, &b->n_text);
  if (!code) code = json_read(path, b->text, b->n_text, &b->manifest);
  if (code) return code;
  b->root = b->manifest.root;
  if (b->root->kind != JSON_OBJECT) return bad_value(b, "manifest", "json", "an object");
  code = check_format(b);
  return code ? code : check_digest(b);
}

/* ------------------------------------------------------------------ its files */
/* A name stays inside the bundle: relative, no "..", no empty part. */
static bool is_inside(const char *name) {
  if (!*name || *name == '/' || strchr(name, '\\')) return false;
  for (const char *part = name; *part;) {
    size_t n = strcspn(part, "/");
    if (n == 0 || (n == 2 && part[0] == '.' && part[1] == '.')) return false;
    part += n;
    if (*part == '/' && !*++part) return false;
  }
  return true;
}

static int check_file(const bundle *b, const json *entry) {
  const char *name, *sha256;
  char path[PATH_BYTES];
  int64_t bytes;
  int code = need_string(b, entry, "files", "path", &name);
  if (code) return code;
  if (!is_inside(name))
    return specc_error(SPECC_E_FORMAT,
        "bundle %s: manifest.json names the file %.256s, which may lie outside the bundle; do not use "
        "it, " BUILD_AGAIN,
        b->options->folder, name);
  if (!json_int(json_get(entry, "bytes"), 0, INT64_MAX, &bytes))
    return bad_value(b, "files", "bytes", "a whole number from 0");
  code = need_hash(b, entry, "files", "sha256", &sha256);
  if (!code) code = file_join(b->options->folder, name, path);
  return code ? code : file_check(path, bytes, b->options->trust ? NULL : sha256);
}

static int check_files(const bundle *b) {
  const json *files = json_array(b->root, "files");
  if (!files) return bad_value(b, "manifest", "files", "a list");
  int code = SPECC_OK;
  for (const json *entry = files->first; !code && entry; entry = entry->next) code = check_file(b, entry);
  return code;
}

/* Full path of a file that the manifest lists, so that it has been checked. */
static int find_file(const bundle *b, const char *name, char path[PATH_BYTES]) {
  const json *files = json_array(b->root, "files");
  for (const json *entry = files->first; entry; entry = entry->next)
    if (!strcmp(json_string(entry, "path"), name)) return file_join(b->options->folder, name, path);
  return specc_error(SPECC_E_FORMAT,
      "bundle %s: manifest.json uses the file %.256s but does not list it; " BUILD_AGAIN, b->options->folder,
      name);
}

/* ------------------------------------------------------------------ plan and tokenizer */
static int read_plan(bundle *b) {
  const json *plan;
  int32_t planned = 0;
  int code = need_object(b, b->root, "manifest", "plan", &plan);
  if (!code) code = need_int(b, plan, "plan", "k", 1, SPECC_MAX_K, &b->k_max);
  if (!code) code = need_int(b, plan, "plan", "context", 1, INT32_MAX / 2, &b->context);
  if (!code) code = need_int(b, plan, "plan", "threads", 0, 1024, &planned);
  b->threads = b->options->threads ? b->options->threads : planned;
  if (!b->threads) b->threads = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
  return code;
}

static int read_eos(bundle *b, const json *tokenizer) {
  const json *list = json_array(tokenizer, "eos");
  if (!list || list->n > MAX_EOS) return bad_value(b, "tokenizer", "eos", "a list of at most 256 ids");
  for (const json *id = list->first; id; id = id->next) {
    int64_t value;
    if (!json_int(id, 0, b->n_ids - 1, &value))
      return bad_value(b, "tokenizer", "eos", "a list of ids of the tokenizer");
    b->eos[b->n_eos++] = (int32_t)value;
  }
  return SPECC_OK;
}

static int read_table(bundle *b, const json *tokenizer) {
  const char *name;
  char path[PATH_BYTES];
  size_t n;
  int code = need_string(b, tokenizer, "tokenizer", "bytes", &name);
  if (!code) code = find_file(b, name, path);
  if (!code) code = file_read(path, MAX_TABLE_BYTES, &b->table, &n);
  if (!code) code = id_bytes_read(path, b->table, n, &b->ids);
  if (code || b->ids.n == b->n_ids) return code;
  return specc_error(SPECC_E_FORMAT, "%s holds %d ids, but the manifest's tokenizer has %d; " BUILD_AGAIN,
      path, b->ids.n, b->n_ids);
}

static int read_tokenizer(bundle *b, bool *strip) {
  const json *tokenizer;
  int code = need_object(b, b->root, "manifest", "tokenizer", &tokenizer);
  if (!code) code = need_int(b, tokenizer, "tokenizer", "ids", 1, 1 << 24, &b->n_ids);
  if (!code) code = read_eos(b, tokenizer);
  if (!code) code = read_table(b, tokenizer);
  const json *flag = json_get(tokenizer, "strip_leading_space");
  *strip = flag && flag->truth;
  return code;
}

/* ------------------------------------------------------------------ engines and drafter */
static int read_widths(const bundle *b, const json *engine, const char *section, specc_ort_options *o) {
  const json *list = json_array(engine, "widths");
  if (!list || list->n < 1 || list->n > SPECC_MAX_WIDTHS)
    return bad_value(b, section, "widths", "a list of 1 to 24 row counts");
  for (const json *width = list->first; width; width = width->next) {
    int64_t value, low = o->n_widths ? o->widths[o->n_widths - 1] + 1 : 1;
    if (!json_int(width, low, 65536, &value))
      return bad_value(b, section, "widths", "a rising list of row counts up to 65536");
    o->widths[o->n_widths++] = (int32_t)value;
  }
  return SPECC_OK;
}

static int read_engine(const bundle *b, const json *engine, const char *section, specc_ort_options *o) {
  bool head = json_get(engine, "hidden_in"); /* may have a reduced vocabulary, and no cache */
  int code = need_int(b, engine, section, "vocab", head ? 1 : b->n_ids, 1 << 24, &o->vocab);
  if (!code) code = need_int(b, engine, section, "layers", !head, 1024, &o->layers);
  if (!code) code = need_int(b, engine, section, "kv_heads", 1, 4096, &o->kv_heads);
  if (!code) code = need_int(b, engine, section, "head_dim", 1, 4096, &o->head_dim);
  if (!code && json_get(engine, "hidden"))
    code = need_int(b, engine, section, "hidden", 1, 1 << 20, &o->hidden);
  if (head) o->n_ids = b->n_ids;
  if (!code && head) code = need_int(b, engine, section, "hidden_in", 1, 1 << 20, &o->hidden_in);
  if (!code) code = read_widths(b, engine, section, o);
  if (code || !o->layers) return code;
  return need_int(
      b, engine, section, "capacity", b->context + o->widths[o->n_widths - 1], INT32_MAX, &o->capacity);
}

static int find_engine(const bundle *b, const char *name, const json **engine) {
  const json *engines;
  int code = need_object(b, b->root, "manifest", "engines", &engines);
  return code ? code : need_object(b, engines, "engines", name, engine);
}

static int read_cache_type(const bundle *b, const json *engine, const char *section, int32_t *type) {
  static const char *const names[] = {"float32", "float16", "bfloat16", "float8"}; /* by SPECC_CACHE_ */
  const char *name = json_string(engine, "cache_dtype");
  *type = SPECC_CACHE_F32;
  if (!json_get(engine, "cache_dtype")) return SPECC_OK;
  for (int32_t i = 0; name && i < 4; i++)
    if (!strcmp(name, names[i])) return *type = i, SPECC_OK;
  return bad_value(b, section, "cache_dtype", "float32, float16, bfloat16 or float8");
}

/* The provider that computes the graph, with options that ONNX Runtime takes as they are. */
static int read_provider(const bundle *b, const json *engine, const char *section, specc_ort_options *o) {
  const json *provider = json_get(engine, "provider"), *options = json_object(provider, "options");
  if (!provider) return SPECC_OK;
  o->provider_library = b->options->provider_library;
  int code = need_string(b, provider, section, "provider.name", &o->provider);
  o->provider = json_string(provider, "name");
  if (!o->provider) return code;
  if (!options) return bad_value(b, section, "provider.options", "an object");
  for (const json *option = options->first; option; option = option->next) {
    if (o->n_provider_options == SPECC_MAX_PROVIDER_OPTIONS || option->kind != JSON_STRING)
      return bad_value(b, section, "provider.options", "an object of at most 24 strings");
    o->provider_keys[o->n_provider_options] = option->key;
    o->provider_values[o->n_provider_options++] = option->text;
  }
  return SPECC_OK;
}

static int open_ort(
    const bundle *b, const json *engine, const char *section, specc_ort_options *o, specc_backend *backend) {
  int code = read_cache_type(b, engine, section, &o->cache_type);
  if (!code) code = read_provider(b, engine, section, o);
  return code ? code : specc_ort_backend(o, backend);
}

/* The plan's hash stands twice, beside what it was built for and in the list of files: a plan changed for
 * another is found. */
static int check_plan(const bundle *b, const json *engine, const char *section, const char *file) {
  const char *sha256;
  int code = need_hash(b, engine, section, "plan_sha256", &sha256);
  if (code) return code;
  const json *files = json_array(b->root, "files");
  for (const json *entry = files->first; entry; entry = entry->next)
    if (!strcmp(json_string(entry, "path"), file) && !strcmp(json_string(entry, "sha256"), sha256))
      return SPECC_OK;
  return specc_error(SPECC_E_FORMAT,
      "bundle %s: engine %.256s is not the one that %s describes: its hash is not plan_sha256; build or "
      "finalize the bundle again",
      b->options->folder, file, section);
}

static int open_tensorrt(const bundle *b, const json *engine, const char *section,
    const specc_ort_options *read, bool rtx, specc_backend *backend) {
  specc_tensorrt_options o = {.plan = read->model,
      .library = b->options->tensorrt_library,
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
  int code = need_string(b, engine, section, "tensorrt", &o.version);
  if (!code) code = need_string(b, engine, section, "platform", &o.platform);
  if (!code) code = need_int(b, engine, section, "sm", 30, 999, &o.sm);
  if (!code) code = read_cache_type(b, engine, section, &o.cache_type);
  if (!code) code = need_string(b, engine, section, "cache_update", &update);
  if (!code && strcmp(update, "in-place") && strcmp(update, "rows"))
    code = bad_value(b, section, "cache_update", "in-place or rows");
  if (!code) code = check_plan(b, engine, section, json_string(engine, "file"));
  const json *stripped = json_get(engine, "stripped");
  if (!code && stripped && stripped->truth)
    return specc_error(SPECC_E_UNSUPPORTED,
        "engine %.256s of bundle %s holds no weights (stripped), and nothing here refits them; build or "
        "finalize the bundle again",
        json_string(engine, "file"), b->options->folder);
  o.rows_out = !code && !strcmp(update, "rows");
  return code ? code : specc_tensorrt_backend(&o, backend);
}

/* A bundle for a device whose engines only that device can build. */
static bool is_unfinished(const json *engine) {
  const json *flag = json_get(engine, "finalize");
  return flag && flag->truth;
}

static int open_engine(const bundle *b, const char *name, specc_backend *backend) {
  specc_ort_options o = {.library = b->options->engine_library, .threads = b->threads};
  const json *engine;
  const char *file, *kind;
  char section[32], path[PATH_BYTES];
  snprintf(section, sizeof section, "engines.%s", name);
  int code = find_engine(b, name, &engine);
  if (!code) code = need_string(b, engine, section, "backend", &kind);
  if (!code && is_unfinished(engine))
    return specc_error(SPECC_E_UNSUPPORTED,
        "bundle %s holds graphs, not engines, for its device; run `specc finalize %s` there",
        b->options->folder, b->options->folder);
  if (!code) code = need_string(b, engine, section, "file", &file);
  if (!code) code = find_file(b, file, path);
  if (!code) code = read_engine(b, engine, section, &o);
  o.model = path;
  if (code) return code;
  o.shares_cores = json_get(json_get(b->root, "engines"), "draft") != NULL;
  if (!strcmp(kind, "ort")) return open_ort(b, engine, section, &o, backend);
  if (!strcmp(kind, "tensorrt")) return open_tensorrt(b, engine, section, &o, false, backend);
  if (!strcmp(kind, "tensorrt-rtx")) return open_tensorrt(b, engine, section, &o, true, backend);
  return specc_error(SPECC_E_UNSUPPORTED,
      "bundle %s: engine %s needs the backend %.32s, but this library has ort, tensorrt and tensorrt-rtx; "
      "update specc",
      b->options->folder, name, kind);
}

static int open_ngram(const bundle *b, const json *draft, specc_drafter *drafter) {
  int32_t low = 0, high = 0;
  int code = need_int(b, draft, "draft", "min_match", 1, 64, &low);
  if (!code) code = need_int(b, draft, "draft", "max_match", low, 64, &high);
  return code ? code : specc_ngram_drafter(low, high, drafter);
}

static int open_table(const bundle *b, const json *draft, specc_drafter *drafter) {
  const char *file;
  char path[PATH_BYTES];
  int32_t least = 0;
  int code = need_string(b, draft, "draft", "file", &file);
  if (!code) code = need_int(b, draft, "draft", "min_count", 1, 65535, &least);
  if (!code) code = find_file(b, file, path);
  return code ? code : specc_table_drafter(path, b->n_ids, least, drafter);
}

static int open_draft_engine(const bundle *b, specc_drafter *drafter) {
  specc_backend engine;
  int code = open_engine(b, "draft", &engine);
  if (code) return code;
  code = specc_model_drafter(&engine, drafter);
  if (code && engine.release) engine.release(engine.self);
  return code;
}

/* A trained head: its engine, and the ids behind its columns where it has a reduced vocabulary. */
static int read_head(const bundle *b, const json *draft, specc_head_options *o) {
  const json *engine, *stop = json_get(draft, "stop");
  const char *ids = json_string(draft, "ids");
  specc_draft_map *map = NULL;
  char path[PATH_BYTES];
  int code = find_engine(b, "draft", &engine);
  if (!code) code = need_int(b, engine, "engines.draft", "hidden_in", 1, 1 << 20, &o->hidden);
  if (!code && stop && (stop->kind != JSON_NUMBER || !(stop->number >= 0 && stop->number < 1)))
    code = bad_value(b, "draft", "stop", "a number in [0, 1)");
  o->stop = stop && !code ? stop->number : 0;
  if (!code && ids) code = find_file(b, ids, path);
  if (!code && ids) code = specc_draft_map_read(path, b->n_ids, &map);
  o->map = map;
  return code;
}

static int open_head(const bundle *b, const json *draft, bool feature, specc_drafter *drafter) {
  specc_head_options o = {0};
  specc_backend engine;
  int code = read_head(b, draft, &o);
  if (!code) code = open_engine(b, "draft", &engine);
  if (code) return specc_draft_map_free((specc_draft_map *)o.map), code;
  o.engine = &engine;
  if (!o.map && engine.vocab < b->n_ids)
    code = bad_value(b, "draft", "ids", "the map that a head with fewer logits than ids needs");
  if (!code) code = feature ? specc_feature_drafter(&o, drafter) : specc_medusa_drafter(&o, drafter);
  if (!code) return code;
  specc_draft_map_free((specc_draft_map *)o.map);
  if (engine.release) engine.release(engine.self);
  return code;
}

static int open_kind(const bundle *b, const json *draft, specc_drafter *drafter);
static int open_hierarchy(const bundle *b, const json *draft, specc_drafter *drafter) {
  specc_backend middle = {0};
  specc_drafter small = {0};
  specc_hierarchy_options o = {.middle = &middle, .small = &small, .n_ids = b->n_ids};
  const json *inner;
  int code = need_object(b, draft, "draft", "draft", &inner);
  if (!code) code = need_int(b, draft, "draft", "k", 1, SPECC_MAX_K - 1, &o.k);
  if (!code) code = open_kind(b, inner, &small);
  if (!code) code = open_engine(b, "draft", &middle);
  if (!code) code = specc_hierarchy_drafter(&o, drafter);
  if (code && middle.release) middle.release(middle.self);
  if (code && small.release) small.release(small.self);
  return code;
}

static int open_staged(const bundle *b, const json *draft, specc_drafter *drafter) {
  const json *list = json_array(draft, "stages");
  specc_drafter stages[8];
  int32_t n = 0;
  if (!list || list->n < 1 || list->n > 8)
    return bad_value(b, "draft", "stages", "a list of 1 to 8 drafters");
  int code = SPECC_OK;
  for (const json *stage = list->first; !code && stage; stage = stage->next) {
    const char *kind = json_string(stage, "kind");
    if (!kind || !strcmp(kind, "staged") || !strcmp(kind, "none"))
      code = bad_value(b, "draft.stages", "kind", "a drafter that can be a stage");
    if (!code) code = open_kind(b, stage, &stages[n]);
    n += !code;
  }
  if (!code) code = specc_staged_drafter(stages, n, drafter);
  for (int32_t i = 0; code && i < n; i++)
    if (stages[i].release) stages[i].release(stages[i].self);
  return code;
}

static int open_drafter(const bundle *b, specc_drafter *drafter) {
  const json *draft;
  int code = need_object(b, b->root, "manifest", "draft", &draft);
  return code ? code : open_kind(b, draft, drafter);
}

static int open_kind(const bundle *b, const json *draft, specc_drafter *drafter) {
  const char *kind;
  int code = need_string(b, draft, "draft", "kind", &kind);
  if (code || !strcmp(kind, "none")) return code;
  if (!strcmp(kind, "feature") || !strcmp(kind, "medusa"))
    return open_head(b, draft, !strcmp(kind, "feature"), drafter);
  if (!strcmp(kind, "staged")) return open_staged(b, draft, drafter);
  if (!strcmp(kind, "hierarchy")) return open_hierarchy(b, draft, drafter);
  if (!strcmp(kind, "ngram")) return open_ngram(b, draft, drafter);
  if (!strcmp(kind, "table")) return open_table(b, draft, drafter);
  if (!strcmp(kind, "model") || !strcmp(kind, "early-exit")) return open_draft_engine(b, drafter);
  return bad_value(
      b, "draft", "kind", "ngram, table, feature, medusa, staged, model, hierarchy, early-exit or none");
}

/* ------------------------------------------------------------------ the model */
static int create_model(const bundle *b, bool strip, const specc_backend *target,
    const specc_drafter *drafter, specc_model **model) {
  specc_model_parts parts = {.target = target,
      .drafter = drafter->name ? drafter : NULL,
      .n_ids = b->n_ids,
      .context = b->context,
      .k_max = b->k_max,
      .n_eos = b->n_eos,
      .eos = b->eos,
      .bytes = b->ids.bytes,
      .offsets = b->ids.offsets,
      .strip_leading_space = strip};
  return specc_model_create(&parts, model);
}

/* Engines belong to the model once it is made, to us before. */
static int assemble(const bundle *b, bool strip, specc_model **model) {
  specc_backend target;
  specc_drafter drafter = {0};
  int code = open_engine(b, "target", &target);
  if (code) return code;
  code = open_drafter(b, &drafter);
  if (!code) code = create_model(b, strip, &target, &drafter, model);
  if (!code) return SPECC_OK;
  if (drafter.name && drafter.release) drafter.release(drafter.self);
  if (target.release) target.release(target.self);
  return code;
}

static int identify(const bundle *b, specc_model *model) {
  const json *engine, *passed = json_get(json_object(b->root, "lint"), "passed");
  const char *sha256;
  int code = find_engine(b, "target", &engine);
  if (!code) code = need_hash(b, engine, "engines.target", "sha256", &sha256);
  if (code) return code;
  memcpy(model->engine_sha256, sha256, 65);
  memcpy(model->digest, json_string(b->root, "digest"), 65);
  model->threads = model->certificate.threads = b->threads;
  model->lint = passed && passed->truth ? 0 : SPECC_R_LINT;
  model->reasons |= model->lint;
  return SPECC_OK;
}

/* The caller's folder goes before the bundle's own. No certificate is no error: speculation stays off. */
static int certify(const bundle *b, specc_model *model) {
  specc_certificate certificate;
  char own[PATH_BYTES];
  int code = file_join(b->options->folder, "certificates", own);
  if (code) return code;
  bool found =
      b->options->certificates && specc_certificate_find(model, b->options->certificates, &certificate);
  if (!found) found = specc_certificate_find(model, own, &certificate);
  return found ? specc_model_set_certificate(model, &certificate) : SPECC_OK;
}

static int open_bundle(bundle *b, specc_model **model) {
  bool strip = false;
  int code = read_manifest(b);
  if (!code) code = check_files(b);
  if (!code) code = read_plan(b);
  if (!code) code = read_tokenizer(b, &strip);
  if (!code) code = assemble(b, strip, model);
  if (code) return code;
  code = identify(b, *model);
  if (!code) code = certify(b, *model);
  if (code) specc_model_free(*model), *model = NULL;
  return code;
}

int specc_model_open(const specc_open_options *options, specc_model **model) {
  if (!options || !options->folder || !model)
    return specc_error(SPECC_E_ARGUMENT, "no bundle folder was named; set folder");
  if (options->threads < 0 || options->threads > 1024)
    return specc_error(SPECC_E_ARGUMENT, "threads is %d; it must be from 0 to 1024", options->threads);
  *model = NULL;
  bundle *b = calloc(1, sizeof *b);
  if (!b)
    return specc_error(SPECC_E_MEMORY, "no memory left to open %s; close other programs", options->folder);
  b->options = options;
  int code = open_bundle(b, model);
  json_free(&b->manifest);
  free(b->ids.offsets);
  free(b->table);
  free(b->text);
  free(b);
  return code;
}
