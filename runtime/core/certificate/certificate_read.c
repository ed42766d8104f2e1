/* certificate_read.c - certificate files at open: which one is for this engine on this device, and why others
 * are not. */
#include "core/certificate/certificate.h"
#include "core/io/error.h"
#include "core/io/files.h"
#include "core/io/json.h"
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* False wherever a value is not what it should be. */
static bool get_double(const json *value, double *out) {
  if (value && value->kind == JSON_NULL) return *out = INFINITY, true;
  if (!value || value->kind != JSON_NUMBER || value->number < 0) return false;
  return *out = value->number, true;
}

static bool get_doubles(const json *root, const char *key, double *out, int32_t n) {
  const json *list = json_array(root, key);
  if (!list || list->n != n) return false;
  for (const json *v = list->first; v; v = v->next)
    if (!get_double(v, out++)) return false;
  return true;
}

static bool get_counts(const json *root, const char *key, int64_t *out, int32_t n) {
  const json *list = json_array(root, key);
  if (!list || list->n != n) return false;
  for (const json *v = list->first; v; v = v->next)
    if (!json_int(v, 0, INT64_MAX, out++)) return false;
  return true;
}

static bool get_int32(const json *root, const char *key, int32_t low, int32_t high, int32_t *out) {
  int64_t value;
  if (!json_int(json_get(root, key), low, high, &value)) return false;
  return *out = (int32_t)value, true;
}

static bool get_kind(const json *root, int32_t *out) {
  const char *name = json_string(root, "kind");
  for (int32_t i = 0; name && i < 3; i++)
    if (!strcmp(name, certificate_kinds[i])) return *out = i, true;
  return false;
}

static bool get_reasons(const json *root, uint32_t *out) {
  const json *list = json_array(root, "reasons");
  *out = 0;
  for (const json *v = list ? list->first : NULL; v; v = v->next) {
    uint32_t bit = v->kind == JSON_STRING ? 1 : 0;
    while (bit && (!specc_reason_name(bit) || strcmp(specc_reason_name(bit), v->text))) bit <<= 1;
    if (!bit) return false;
    *out |= bit;
  }
  return list != NULL;
}

/* Marks the widths of one class; each width of the engine may be named once. */
static bool mark_class(const json *list, int32_t number, specc_certificate *c, bool *named) {
  if (!list || list->kind != JSON_ARRAY) return false;
  for (const json *v = list->first; v; v = v->next) {
    int64_t width;
    int32_t i = 0;
    if (!json_int(v, 1, INT32_MAX, &width)) return false;
    while (i < c->n_widths && c->widths[i] != width) i++;
    if (i == c->n_widths || named[i]) return false;
    named[i] = true;
    c->width_class[i] = number;
  }
  return true;
}

/* The classes must name exactly the engine's widths. */
static bool get_widths(const json *root, const specc_backend *engine, specc_certificate *c) {
  const json *classes = json_array(root, "widths");
  bool named[SPECC_MAX_WIDTHS] = {false};
  int32_t number = 0;
  c->n_widths = engine->n_widths;
  memcpy(c->widths, engine->widths, sizeof c->widths);
  for (const json *v = classes ? classes->first : NULL; v; v = v->next)
    if (!mark_class(v, number++, c, named)) return false;
  if (!classes || !mark_class(json_array(root, "unstable_widths"), -1, c, named)) return false;
  for (int32_t i = 0; i < c->n_widths; i++)
    if (!named[i]) return false;
  return true;
}

static bool get_law_width(const json *root, specc_certificate *c) {
  if (!get_int32(root, "law_width", 1, INT32_MAX, &c->law_width)) return false;
  for (int32_t i = 0; i < c->n_widths; i++)
    if (c->widths[i] == c->law_width) return true;
  return false;
}

static bool get_law_hash(const json *root, uint64_t *out) {
  const char *text = json_string(root, "law_hash");
  if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16) return false;
  return *out = strtoull(text, NULL, 16), true;
}

static bool read_measured(const json *root, const specc_backend *engine, specc_certificate *c) {
  int32_t n = engine->n_widths;
  return get_kind(root, &c->kind) && get_widths(root, engine, c) && get_law_width(root, c) &&
         get_law_hash(root, &c->law_hash) && get_int32(root, "k", 0, SPECC_MAX_K, &c->k) &&
         get_int32(root, "threads", 1, 1024, &c->threads) && get_reasons(root, &c->reasons) &&
         get_double(json_get(root, "tv_mean"), &c->tv_mean) &&
         get_double(json_get(root, "tv_max"), &c->tv_max) &&
         json_int(json_get(root, "rows_compared"), 0, INT64_MAX, &c->rows_compared) &&
         get_counts(root, "rows_different", c->rows_different, n) &&
         get_doubles(root, "max_abs_diff", c->max_abs_diff, n) &&
         get_doubles(root, "call_ms", c->call_ms, n) &&
         get_double(json_get(root, "draft_ms"), &c->draft_ms) &&
         (!json_get(root, "draft_call_ms") ||
             get_double(json_get(root, "draft_call_ms"), &c->draft_call_ms)) &&
         json_int(json_get(root, "calls"), 0, INT64_MAX, &c->calls);
}

/* What came with format 2. */
static bool read_apart(const json *root, specc_certificate *c) {
  const char *evidence = json_string(root, "evidence");
  if (!evidence) return false;
  snprintf(c->evidence, sizeof c->evidence, "%s", evidence);
  return json_int(json_get(root, "tv_rows"), 0, INT64_MAX, &c->tv_rows) &&
         json_int(json_get(root, "flips"), 0, INT64_MAX, &c->flips) &&
         json_int(json_get(root, "unrepeatable"), 0, INT64_MAX, &c->unrepeatable) &&
         get_double(json_get(root, "flip_margin"), &c->flip_margin);
}

static bool matches(const json *root, const char *key, const char *want) {
  const char *text = json_string(root, key);
  return text && !strcmp(text, want);
}

static bool is_sealed(const json *root, const char *text, size_t n) {
  const json *value = json_get(root, "seal");
  char hex[65];
  if (!value || value->kind != JSON_STRING || value->n != SEAL_DIGITS || n - value->at < SEAL_DIGITS + 2)
    return false;
  if (memcmp(text + value->at + 1, value->text, SEAL_DIGITS)) return false;
  certificate_seal(text, n, value->at + 1, hex);
  return !strcmp(hex, value->text);
}

/* Why a certificate that reads well is not for this engine on this device; NULL: it is. */
static const char *foreign(const json *root, const identity *id) {
  int64_t number;
  if (!matches(root, "engine_sha256", id->engine_sha256))
    return "it is for another engine file; run specc gate on this bundle";
  if (!matches(root, "digest", id->digest)) return "it is for another bundle; run specc gate on this bundle";
  if (!matches(root, "backend", id->backend) || !matches(root, "backend_version", id->backend_version))
    return "it is for another engine library or another version of it; run specc gate with this one";
  if (!matches(root, "fingerprint", id->fingerprint))
    return "it is from another machine, or this machine's processor features have changed; run specc gate "
           "here";
  if (!json_int(json_get(root, "threads"), id->threads, id->threads, &number))
    return "it is for another thread count; run specc gate with this one";
  return NULL;
}

/* Why the text is no certificate that this library believes; NULL: it is one. */
static const char *damaged(const json *root, const char *text, size_t n) {
  int64_t format = 0;
  if (root->kind != JSON_OBJECT || !json_int(json_get(root, "format"), 1, INT64_MAX, &format))
    return "it is not a certificate";
  if (format > CERTIFICATE_FORMAT)
    return "it is of a newer format; update specc, or run specc gate with this version";
  if (format < CERTIFICATE_FORMAT) return "it is of a format without a seal; run specc gate again";
  if (!is_sealed(root, text, n))
    return "its seal does not fit its content: it was edited or damaged after it was written; run specc gate "
           "again";
  return NULL;
}

/* NULL: the file's certificate is for this engine on this device; date receives when it was written. Else why
 * it is not. */
static const char *read_file(const struct specc_model *model, const identity *id, const char *path,
    specc_certificate *c, char date[32]) {
  char *text = NULL;
  size_t n = 0;
  json_document document = {0};
  if (file_read(path, JSON_MAX_BYTES, &text, &n)) return "it cannot be read";
  const char *why = json_read(path, text, n, &document) ? "it is not whole JSON: damaged or cut off"
                                                        : damaged(document.root, text, n);
  if (!why) why = foreign(document.root, id);
  if (!why && !read_measured(document.root, &model->target, c))
    why = "a value in it is not what it should be; run specc gate again";
  if (!why && json_get(document.root, "seal") && !read_apart(document.root, c))
    why = "a value in it is missing; run specc gate again";
  const char *written = why ? NULL : json_string(document.root, "date");
  snprintf(date, 32, "%s", written ? written : "");
  json_free(&document);
  free(text);
  return why;
}

int specc_certificate_explain(const specc_model *model, const char *path, char *note, size_t n_note) {
  if (!model || !path || !note || !n_note)
    return specc_error(
               SPECC_E_ARGUMENT, "specc_certificate_explain needs a model, a path and a place for the note"),
           0;
  identity id = identify_model(model);
  specc_certificate c = {0};
  char date[32];
  const char *why = read_file(model, &id, path, &c, date);
  snprintf(note, n_note, "%s", why ? why : "it is for this engine on this device");
  return !why;
}

static bool is_certificate_name(const char *name) {
  size_t n = strlen(name);
  /* The gate's report lies beside its certificate. */
  bool report = n > 12 && !strcmp(name + n - 12, ".report.json");
  return name[0] != '.' && n > 5 && !strcmp(name + n - 5, ".json") && !report;
}

/* 1: found, the newest that fits; 0: none. Damaged, newer and foreign files are passed over, never an error.
 */
int specc_certificate_find(
    const struct specc_model *model, const char *folder, specc_certificate *certificate) {
  DIR *entries = opendir(folder);
  if (!entries) return 0;
  identity id = identify_model(model);
  char path[PATH_BYTES], date[32], newest[32] = "";
  int found = 0;
  for (const struct dirent *entry; (entry = readdir(entries));) {
    specc_certificate c = {0};
    if (!is_certificate_name(entry->d_name) || file_join(folder, entry->d_name, path) ||
        read_file(model, &id, path, &c, date))
      continue;
    if (found && strcmp(date, newest) <= 0) continue;
    *certificate = c;
    memcpy(newest, date, sizeof newest);
    found = 1;
  }
  closedir(entries);
  return found;
}
