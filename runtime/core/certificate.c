/* certificate.c - certificate files: what was measured for one engine on one device, written once and read at open. */
#include "files.h"
#include "json.h"
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CERTIFICATE_FORMAT 1

static const char *const kind_names[] = { "none", "bounded", "bit-exact" };   /* by enum specc_certificate_kind */

/* What a certificate is bound to. */
typedef struct identity {
  const char *digest, *engine_sha256, *backend, *backend_version;
  char device[256], fingerprint[65];
  int32_t threads;
} identity;

static identity identify(const struct specc_model *model) {
  identity id = { .digest = model->digest, .engine_sha256 = model->engine_sha256, .threads = model->threads };
  id.backend = model->target.name ? model->target.name : "";
  id.backend_version = model->target.version ? model->target.version : "";
  memcpy(id.device, model->device, sizeof id.device);
  memcpy(id.fingerprint, model->fingerprint, sizeof id.fingerprint);
  return id;
}

/* ------------------------------------------------------------------ writing */
static void put_string(FILE *out, const char *key, const char *text) {
  char quoted[1024];
  json_quote(text, quoted, sizeof quoted);
  fprintf(out, " \"%s\": %s,\n", key, quoted);
}

static void put_number(FILE *out, double x) {
  if (isfinite(x)) fprintf(out, "%.17g", x);
  else fputs("null", out);           /* JSON has no infinity; read back as one */
}

static void put_double(FILE *out, const char *key, double x) {
  fprintf(out, " \"%s\": ", key);
  put_number(out, x);
  fputs(",\n", out);
}

static void put_doubles(FILE *out, const char *key, const double *x, int32_t n) {
  fprintf(out, " \"%s\": [", key);
  for (int32_t i = 0; i < n; i++) {
    if (i) fputs(", ", out);
    put_number(out, x[i]);
  }
  fputs("],\n", out);
}

static void put_counts(FILE *out, const char *key, const int64_t *x, int32_t n) {
  fprintf(out, " \"%s\": [", key);
  for (int32_t i = 0; i < n; i++) fprintf(out, "%s%lld", i ? ", " : "", (long long)x[i]);
  fputs("],\n", out);
}

/* "[2, 3, 5]": every width of a class. */
static void put_class(FILE *out, const specc_certificate *c, int32_t number) {
  const char *between = "";
  fputc('[', out);
  for (int32_t i = 0; i < c->n_widths; i++) {
    if (c->width_class[i] != number) continue;
    fprintf(out, "%s%d", between, c->widths[i]);
    between = ", ";
  }
  fputc(']', out);
}

static int32_t class_of(const specc_certificate *c, int32_t width) {
  for (int32_t i = 0; i < c->n_widths; i++)
    if (c->widths[i] == width) return c->width_class[i];
  return -1;
}

static bool is_first_of_class(const specc_certificate *c, int32_t i) {
  for (int32_t j = 0; j < i; j++)
    if (c->width_class[j] == c->width_class[i]) return false;
  return c->width_class[i] >= 0;
}

/* The law's class first; widths whose own rows disagree stand apart. */
static void put_widths(FILE *out, const specc_certificate *c) {
  int32_t law = class_of(c, c->law_width);
  const char *between = "";
  fputs(" \"widths\": [", out);
  if (law >= 0) put_class(out, c, law), between = ", ";
  for (int32_t i = 0; i < c->n_widths; i++) {
    if (!is_first_of_class(c, i) || c->width_class[i] == law) continue;
    fputs(between, out);
    put_class(out, c, c->width_class[i]);
    between = ", ";
  }
  fputs("],\n \"unstable_widths\": ", out);
  put_class(out, c, -1);
  fputs(",\n", out);
}

static void put_reasons(FILE *out, uint32_t reasons) {
  const char *between = "";
  fputs(" \"reasons\": [", out);
  for (uint32_t bit = 1; bit; bit <<= 1) {
    if (!(reasons & bit) || !specc_reason_name(bit)) continue;
    fprintf(out, "%s\"%s\"", between, specc_reason_name(bit));
    between = ", ";
  }
  fputs("],\n", out);
}

static void put_identity(FILE *out, const identity *id) {
  put_string(out, "digest", id->digest);
  put_string(out, "engine_sha256", id->engine_sha256);
  put_string(out, "backend", id->backend);
  put_string(out, "backend_version", id->backend_version);
  put_string(out, "device", id->device);
  put_string(out, "fingerprint", id->fingerprint);
  fprintf(out, " \"threads\": %d,\n", id->threads);
}

static void put_measured(FILE *out, const specc_certificate *c) {
  put_string(out, "kind", kind_names[c->kind]);
  put_widths(out, c);
  fprintf(out, " \"law_width\": %d,\n \"law_hash\": \"%016llx\",\n \"k\": %d,\n", c->law_width, (unsigned long long)c->law_hash, c->k);
  put_reasons(out, c->reasons);
  put_double(out, "tv_mean", c->tv_mean);
  put_double(out, "tv_max", c->tv_max);
  fprintf(out, " \"rows_compared\": %lld,\n", (long long)c->rows_compared);
  put_counts(out, "rows_different", c->rows_different, c->n_widths);
  put_doubles(out, "max_abs_diff", c->max_abs_diff, c->n_widths);
  put_doubles(out, "call_ms", c->call_ms, c->n_widths);
  put_double(out, "draft_ms", c->draft_ms);
  put_double(out, "draft_call_ms", c->draft_call_ms);
  fprintf(out, " \"calls\": %lld,\n", (long long)c->calls);
}

static void put_certificate(FILE *out, const identity *id, const specc_certificate *c, const char *report) {
  char date[32] = "";
  time_t now = time(NULL);
  struct tm utc;
  if (gmtime_r(&now, &utc)) strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
  fprintf(out, "{\n \"format\": %d,\n", CERTIFICATE_FORMAT);
  put_identity(out, id);
  put_measured(out, c);
  put_string(out, "date", date);
  fprintf(out, " \"report\": %s\n}\n", report ? report : "{}");
}

/* The file's text, malloc'd; NULL without memory. Numbers are written with a point, whatever the program's locale. */
static char *compose(const identity *id, const specc_certificate *c, const char *report, size_t *n) {
  char *text = NULL;
  locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0), before;
  FILE *out = plain ? open_memstream(&text, n) : NULL;
  if (out) {
    before = uselocale(plain);
    put_certificate(out, id, c, report);
    uselocale(before);
    bool failed = ferror(out);
    if (fclose(out) || failed) free(text), text = NULL;
  }
  if (plain) freelocale(plain);
  return text;
}

static int check_report(const char *report) {
  json_document document;
  if (!report) return SPECC_OK;
  int code = json_read("the certificate's report", report, strlen(report), &document);
  if (!code && document.root->kind != JSON_OBJECT) code = specc_error(SPECC_E_ARGUMENT, "the certificate's report is not a JSON object; pass an object");
  json_free(&document);
  return code;
}

static int check_certificate(const struct specc_model *model, const specc_certificate *c) {
  if (!c || c->kind < SPECC_CERT_NONE || c->kind > SPECC_CERT_BIT_EXACT || c->n_widths < 1 || c->n_widths > SPECC_MAX_WIDTHS)
    return specc_error(SPECC_E_ARGUMENT, "the certificate is not one that specc_certify filled; run it first");
  if (!model->engine_sha256[0])
    return specc_error(SPECC_E_UNSUPPORTED, "a model without a bundle has no engine hash that a certificate could be bound to; use specc_model_certify");
  return SPECC_OK;
}

/* "AMD EPYC 7B13" -> "amd-epyc-7b13" */
static void make_slug(const char *name, char slug[64]) {
  size_t n = 0;
  for (; *name && n < 63; name++) {
    unsigned char c = (unsigned char)*name;
    if (c < 128 && isalnum(c)) slug[n++] = (char)tolower(c);
    else if (n && slug[n - 1] != '-') slug[n++] = '-';
  }
  while (n && slug[n - 1] == '-') n--;
  slug[n] = 0;
  if (!n) memcpy(slug, "device", 7);
}

static int cannot_write(const char *path) {
  return specc_error(SPECC_E_IO, "certificate %s cannot be written (%m); check the folder's space and permissions", path);
}

static bool write_all(int fd, const char *text, size_t n) {
  while (n) {
    ssize_t part = write(fd, text, n);
    if (part < 0 && errno == EINTR) continue;
    if (part <= 0) return false;
    text += part, n -= (size_t)part;
  }
  return !fchmod(fd, 0644) && !fsync(fd);
}

static void sync_folder(const char *folder) {
  int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  fsync(fd);                         /* the file itself is safe already; a folder that cannot be synced is no error */
  close(fd);
}

/* Whole or not at all: a temporary file beside it, synced, then renamed. */
static int write_file(const char *folder, const char *path, const char *text, size_t n) {
  char temporary[PATH_BYTES];
  int code = file_join(folder, ".certificate-XXXXXX", temporary);
  if (code) return code;
  if (mkdir(folder, 0777) && errno != EEXIST) return cannot_write(path);
  int fd = mkostemp(temporary, O_CLOEXEC);
  if (fd < 0) return cannot_write(path);
  bool done = write_all(fd, text, n);
  done = !close(fd) && done;
  done = done && !rename(temporary, path);
  if (!done) {
    code = cannot_write(path);
    unlink(temporary);
    return code;
  }
  sync_folder(folder);
  return SPECC_OK;
}

static int save(const identity *id, const specc_certificate *certificate, const char *report, const char *folder, const char *path) {
  json_document document;
  size_t n = 0;
  char *text = compose(id, certificate, report, &n);
  if (!text) return specc_error(SPECC_E_MEMORY, "no memory left to write certificate %s; close other programs", path);
  int code = json_read(path, text, n, &document);      /* what is written can be read */
  json_free(&document);
  if (!code) code = write_file(folder, path, text, n);
  free(text);
  return code;
}

int specc_certificate_save(specc_model *model, const specc_certificate *certificate, const char *report, const char *folder, char *path, size_t n_path) {
  if (!model || !folder) return specc_error(SPECC_E_ARGUMENT, "no model or no folder was named; pass both");
  int code = check_certificate(model, certificate);
  if (!code) code = check_report(report);
  if (code) return code;
  identity id = identify(model);
  char slug[64], name[96], file[PATH_BYTES];
  make_slug(id.device, slug);
  snprintf(name, sizeof name, "%s-%d.json", slug, id.threads);
  code = file_join(folder, name, file);
  if (!code) code = save(&id, certificate, report, folder, file);
  if (!code && path && n_path) snprintf(path, n_path, "%s", file);
  return code;
}

/* ------------------------------------------------------------------ reading: false wherever a value is not what it should be */
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
    if (!strcmp(name, kind_names[i])) return *out = i, true;
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
  bool named[SPECC_MAX_WIDTHS] = { false };
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
         get_int32(root, "threads", 1, 1024, &c->threads) && get_reasons(root, &c->reasons) && get_double(json_get(root, "tv_mean"), &c->tv_mean) &&
         get_double(json_get(root, "tv_max"), &c->tv_max) && json_int(json_get(root, "rows_compared"), 0, INT64_MAX, &c->rows_compared) &&
         get_counts(root, "rows_different", c->rows_different, n) && get_doubles(root, "max_abs_diff", c->max_abs_diff, n) &&
         get_doubles(root, "call_ms", c->call_ms, n) && get_double(json_get(root, "draft_ms"), &c->draft_ms) &&
         (!json_get(root, "draft_call_ms") || get_double(json_get(root, "draft_call_ms"), &c->draft_call_ms)) &&
         json_int(json_get(root, "calls"), 0, INT64_MAX, &c->calls);
}

static bool matches(const json *root, const char *key, const char *want) {
  const char *text = json_string(root, key);
  return text && !strcmp(text, want);
}

static bool is_ours(const json *root, const identity *id) {
  int64_t number;
  return json_int(json_get(root, "format"), CERTIFICATE_FORMAT, CERTIFICATE_FORMAT, &number) && matches(root, "digest", id->digest) &&
         matches(root, "engine_sha256", id->engine_sha256) && matches(root, "backend", id->backend) &&
         matches(root, "backend_version", id->backend_version) && matches(root, "fingerprint", id->fingerprint) &&
         json_int(json_get(root, "threads"), id->threads, id->threads, &number);
}

/* A fitting certificate of one file; date receives when it was written. */
static bool read_file(const struct specc_model *model, const identity *id, const char *path, specc_certificate *c, char date[32]) {
  char *text = NULL;
  size_t n = 0;
  json_document document = { 0 };
  if (file_read(path, JSON_MAX_BYTES, &text, &n)) return false;
  bool fits = !json_read(path, text, n, &document) && is_ours(document.root, id) && read_measured(document.root, &model->target, c);
  const char *written = json_string(document.root, "date");
  snprintf(date, 32, "%s", written ? written : "");
  json_free(&document);
  free(text);
  return fits;
}

static bool is_certificate_name(const char *name) {
  size_t n = strlen(name);
  bool report = n > 12 && !strcmp(name + n - 12, ".report.json");   /* the gate's report lies beside its certificate */
  return name[0] != '.' && n > 5 && !strcmp(name + n - 5, ".json") && !report;
}

/* 1: found, the newest that fits; 0: none. Damaged, newer and foreign files are passed over, never an error. */
int specc_certificate_find(const struct specc_model *model, const char *folder, specc_certificate *certificate) {
  DIR *entries = opendir(folder);
  if (!entries) return 0;
  identity id = identify(model);
  char path[PATH_BYTES], date[32], newest[32] = "";
  int found = 0;
  for (const struct dirent *entry; (entry = readdir(entries));) {
    specc_certificate c = { 0 };
    if (!is_certificate_name(entry->d_name) || file_join(folder, entry->d_name, path) || !read_file(model, &id, path, &c, date)) continue;
    if (found && strcmp(date, newest) <= 0) continue;
    *certificate = c;
    memcpy(newest, date, sizeof newest);
    found = 1;
  }
  closedir(entries);
  return found;
}
